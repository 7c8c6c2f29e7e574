"""What the process counts: learned, recognised, refused, planned, written."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.host import AgentHost
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.store.sqlite import SqliteStore

Refusal = Callable[[Callable[[], object]], Any]
STEP = control_pb2.Transition(state=0, action=1, next_state=0)


class Played:
    """A server, a client, and what the server has counted."""

    def __init__(self, server: EmbeddedServer, wire: Any) -> None:
        self.wire = wire
        self._registry = server._server.agents.meter.registry

    def count(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"safe_psrl_{name}", labels) or 0.0

    def exemplar(self, name: str, **labels: str) -> dict[str, str]:
        samples = [sample for family in self._registry.collect() for sample in family.samples]
        (found,) = [s for s in samples if s.name == f"safe_psrl_{name}" and s.labels == labels]
        assert found.exemplar is not None
        return found.exemplar.labels


@pytest.fixture
def played(make_wire: Callable[..., Any]) -> Iterator[Played]:
    with EmbeddedServer() as server, make_wire(server.target) as wire:
        yield Played(server, wire)


def test_transitions_are_counted_once_and_their_repetitions_apart(played: Played) -> None:
    """By whichever call they come."""
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


def test_refused_calls_are_counted_by_their_reason(played: Played, refusal: Refusal) -> None:
    """With the agent that was meant beside the latest; administrative calls and messages of a stream, too."""
    wire, agent = played.wire, played.wire.create()
    assert refusal(lambda: wire.act("n" * 500, 0)).reason == "AGENT_NOT_FOUND"
    assert refusal(lambda: wire.status("nobody")).reason == "AGENT_NOT_FOUND"
    assert played.count("rejections_total", reason="AGENT_NOT_FOUND") == 2
    assert played.exemplar("rejections_total", reason="AGENT_NOT_FOUND") == {"agent": "nobody"}
    assert refusal(lambda: wire.report(agent, STEP)).reason == "NO_EPISODE"
    wire.start(agent)
    assert refusal(lambda: wire.start(agent)).reason == "EPISODE_OPEN"
    assert refusal(lambda: wire.admin.ListAgents(admin_pb2.ListAgentsRequest(page_size=-1))).reason == "INVALID_ARGUMENT"
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


def test_plans_are_counted_and_timed(played: Played, make_spec: Callable[..., Any]) -> None:
    """Those whose kernels contradict the satisfiable cost are counted apart."""
    agent = played.wire.create()
    played.wire.start(agent)
    played.wire.start(agent, abandon_open=True)
    assert played.count("plans_total") == played.count("plan_duration_seconds_count") == 2
    assert played.count("plans_infeasible_total") == 0
    spec = make_spec()
    cmdp = spec.cmdp
    for constraint in cmdp.constraints:  # every action costs, so that no kernel can keep a cost of next to nothing
        constraint.satisfiable_cost = 1e-6
        for i in range(len(constraint.cost.values)):
            constraint.cost.values[i] = 1.0
    impossible = played.wire.create(spec)
    played.wire.start(impossible)
    assert played.count("plans_total") == 3
    assert played.count("plans_infeasible_total") == 1


def test_actions_of_a_fallback_policy_are_counted(played: Played, make_spec: Callable[..., Any]) -> None:
    wire, agent = played.wire, played.wire.create(make_spec(fallback=True))
    wire.start(agent)
    wire.act(agent, 0)
    wire.step(agent, STEP)
    assert played.count("fallback_actions_total") == 0
    wire.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent=agent))
    assert wire.act(agent, 0).fallback
    assert played.count("fallback_actions_total") == 1
    assert wire.step(agent, STEP).fallback
    assert played.count("fallback_actions_total") == 2


async def test_the_store_tells_of_each_commit(tmp_path: Path) -> None:
    """How long it took and how many events were in it; a group of callers is one commit."""
    commits: list[tuple[float, int]] = []
    store = SqliteStore(tmp_path, lambda seconds, events: commits.append((seconds, events)))
    await store.open()
    try:
        await asyncio.gather(*(store.append(f"agent-{i}", 0, [b"one", b"two"]) for i in range(50)))
        assert sum(events for _, events in commits) == 100
        assert len(commits) < 50
        assert all(0 < seconds < 60 for seconds, _ in commits)
        before = len(commits)
        await store.save_snapshot("agent-0", 2, b"snapshot")
        assert [events for _, events in commits[before:]] == [0]
        usage = store.usage()
        assert usage is not None
        assert usage.used_bytes == bytes_of(tmp_path)
        assert usage.free_bytes > 0
    finally:
        await store.close()


async def test_snapshots_are_weighed_and_what_is_behind_them_is_dated(tmp_path: Path, make_spec: Callable[..., Any]) -> None:
    """The time of the oldest event that no snapshot holds is the same after a restart."""
    times = iter(range(1_000_000, 2_000_000, 1_000))
    store, host = await opened(tmp_path, lambda: next(times))
    commands, count = AgentCommands(host), host.meter.registry.get_sample_value
    await commands.create("a", make_spec())
    assert host.hosted()[0].unsaved_since_micros == 1_000_000
    await host.snapshot("a")
    assert host.hosted()[0].unsaved_since_micros is None
    assert count("safe_psrl_snapshot_bytes_count") == 1
    begun = next(times)
    for _ in range(2):
        await commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", abandon_open=True))
    assert count("safe_psrl_store_commit_events_sum") == 4
    assert count("safe_psrl_store_commit_events_count") == 3
    assert count("safe_psrl_store_commit_seconds_count") == 4
    (agent,) = host.hosted()
    assert agent.snapshot_version == 1
    since = agent.unsaved_since_micros
    assert since is not None
    assert begun < since < next(times)
    await store.close()  # and no snapshot: as if killed
    store, host = await opened(tmp_path, lambda: next(times))
    (agent,) = host.hosted()
    assert (agent.snapshot_version, agent.unsaved_since_micros) == (1, since)
    await store.close()


async def opened(directory: Path, now_micros: Callable[[], int]) -> tuple[SqliteStore, AgentService]:
    meter = Meter()
    store = SqliteStore(directory, meter.committed)
    await store.open()
    host = AgentService(store, Limits(), SnapshotPolicy(), now_micros, meter)
    await host.recover()
    host.ready = True
    return store, host


def bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("safe-psrl.*"))
