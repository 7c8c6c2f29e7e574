"""What the process counts: learned, recognised, refused, planned, written."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.samples import Sample

from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.store.sqlite.store import SqliteStore
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.metrics.scrapes import OPEN, get
from tests.safe_psrl_server.specs import make_spec
from tests.safe_psrl_server.wire import Wire, refusal, serving

STEP = control_pb2.Transition(state=0, action=1, next_state=0)


class Played:
    """A server, a client, and what the server has counted."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def count(self, name: str, **labels: str) -> float:
        return next((sample.value for sample in self._samples(name, labels)), 0.0)

    def exemplar(self, name: str, **labels: str) -> dict[str, str]:
        (found,) = self._samples(name, labels)
        assert found.exemplar is not None
        return found.exemplar.labels

    def _samples(self, name: str, labels: dict[str, str]) -> list[Sample]:
        _, body = get(self.wire.metrics_port, "/metrics", Accept=OPEN)
        samples = [sample for family in parse_open(body.decode()) for sample in family.samples]
        return [sample for sample in samples if sample.name == f"safe_psrl_{name}" and sample.labels == labels]


@pytest.fixture
def played() -> Iterator[Played]:
    with serving(metrics="127.0.0.1:0") as wire:
        yield Played(wire)


def test_transitions_are_counted_once_and_their_repetitions_apart(played: Played) -> None:
    agent = played.wire.create()
    episode = played.wire.start(agent).episode
    played.wire.report(agent, STEP, episode=episode, step=0)
    assert (played.count("transitions_total"), played.count("duplicates_total")) == (1, 0)
    played.wire.report(agent, STEP, episode=episode, step=0)
    played.wire.step(agent, STEP, episode=episode, step=0)
    assert (played.count("transitions_total"), played.count("duplicates_total")) == (1, 2)
    played.wire.step(agent, STEP)
    played.wire.report_episode(agent, episode, STEP, STEP, STEP)
    assert (played.count("transitions_total"), played.count("duplicates_total")) == (3, 4)
    played.wire.report_episode(agent, episode, STEP, STEP, STEP)
    assert (played.count("transitions_total"), played.count("duplicates_total")) == (3, 7)


def test_refused_calls_are_counted_by_their_reason(played: Played) -> None:
    """With the agent that was meant beside the latest; administrative calls and messages of a stream, too."""
    wire, agent = played.wire, played.wire.create()
    refusal(lambda: wire.act("n" * 500, 0), reason="AGENT_NOT_FOUND")
    refusal(lambda: wire.status("nobody"), reason="AGENT_NOT_FOUND")
    assert played.count("rejections_total", reason="AGENT_NOT_FOUND") == 2
    assert played.exemplar("rejections_total", reason="AGENT_NOT_FOUND") == {"agent": "nobody"}
    refusal(lambda: wire.report(agent, STEP), reason="NO_EPISODE")
    wire.start(agent)
    refusal(lambda: wire.start(agent), reason="EPISODE_OPEN")
    refusal(lambda: wire.list(page_size=-1), reason="INVALID_ARGUMENT")
    requests = [
        control_pb2.StepStreamRequest(step=control_pb2.StepRequest(agent=agent, step=2, transition=STEP)),
        control_pb2.StepStreamRequest(step=control_pb2.StepRequest(agent="nobody", transition=STEP)),
        control_pb2.StepStreamRequest(),
    ]
    replies = list(wire.control.StepStream(iter(requests)))
    assert [reply.error.reason for reply in replies] == ["STEP_GAP", "AGENT_NOT_FOUND", "INVALID_ARGUMENT"]
    expected = {"AGENT_NOT_FOUND": 3, "NO_EPISODE": 1, "EPISODE_OPEN": 1, "INVALID_ARGUMENT": 2, "STEP_GAP": 1}
    assert {reason: played.count("rejections_total", reason=reason) for reason in expected} == expected
    assert played.exemplar("rejections_total", reason="STEP_GAP") == {"agent": agent}


def test_plans_are_counted_and_timed(played: Played) -> None:
    """Those whose kernels contradict the satisfiable cost are counted apart."""
    agent = played.wire.create()
    played.wire.start(agent)
    played.wire.start(agent, abandon_open=True)
    assert played.count("plans_total") == played.count("plan_duration_seconds_count") == 2
    assert played.count("plans_infeasible_total") == 0
    spec = make_spec(options=model_pb2.SafePsrlOptions(method="published"))
    cmdp = spec.cmdp
    for constraint in cmdp.constraints:  # every action costs, so that no kernel can keep a cost of next to nothing
        constraint.satisfiable_cost = 1e-6
        for i in range(len(constraint.cost.values)):
            constraint.cost.values[i] = 1.0
    impossible = played.wire.create(spec)
    played.wire.start(impossible)
    assert played.count("plans_total") == 3
    assert played.count("plans_infeasible_total") == 1


def test_actions_of_a_fallback_policy_are_counted(played: Played) -> None:
    wire, agent = played.wire, played.wire.create(make_spec(fallback=True))
    wire.start(agent)
    wire.act(agent, 0)
    wire.step(agent, STEP)
    assert played.count("fallback_actions_total") == 0
    wire.pause(agent)
    assert wire.act(agent, 0).fallback
    assert played.count("fallback_actions_total") == 1
    assert wire.step(agent, STEP).fallback
    assert played.count("fallback_actions_total") == 2


async def test_concurrent_calls_share_commits(new_bench: NewBench, tmp_path: Path) -> None:
    bench = await new_bench(f"sqlite:{tmp_path}")
    count = bench.agents.meter.registry.get_sample_value
    await asyncio.gather(*(bench.administration.create(f"agent-{i}", make_spec()) for i in range(50)))
    assert count("safe_psrl_store_commit_events_sum") == 50
    assert count("safe_psrl_store_commit_events_count") == count("safe_psrl_store_commit_seconds_count") < 50
    assert 0 < count("safe_psrl_store_commit_seconds_sum") < 60
    usage = bench.store.usage()
    assert usage.used_bytes == sum(file.stat().st_size for file in os.scandir(tmp_path) if file.name.startswith("safe-psrl."))
    assert usage.free_bytes > 0


async def test_snapshots_and_the_events_after_them_are_measured(tmp_path: Path) -> None:
    """The time of the oldest event newer than the snapshot is the same after a restart."""
    bench = await Bench(SqliteStore(tmp_path)).open()
    count = bench.agents.meter.registry.get_sample_value
    await bench.create()
    (agent,) = bench.agents.agents()
    assert agent.unsaved_since_micros == bench.clock.micros
    await bench.snapshot("a")
    assert agent.unsaved_since_micros is None
    assert count("safe_psrl_snapshot_bytes_count") == 1
    bench.clock.pass_seconds(1)
    since = bench.clock.micros
    for _ in range(2):
        await bench.start(abandon_open=True)
        bench.clock.pass_seconds(1)
    assert count("safe_psrl_store_commit_events_sum") == 4
    assert count("safe_psrl_store_commit_events_count") == 3
    assert (agent.snapshot_version, agent.unsaved_since_micros) == (1, since)
    await bench.store.close()  # without a snapshot, as if killed
    bench = await Bench(SqliteStore(tmp_path)).open()
    await bench.agents.record("a")
    (agent,) = bench.agents.agents()
    assert (agent.snapshot_version, agent.unsaved_since_micros) == (1, since)
    await bench.close()
