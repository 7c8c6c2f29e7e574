"""Agents that begin with counts: the library's state to the bit, through restarts and moves; and what creation refuses."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl import InitialCounts, Transition
from safe_psrl.learner import AgentState
from safe_psrl_proto.v1 import admin_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.definition import completed, definition_of
from safe_psrl_server.agents.messages import table
from safe_psrl_server.agents.snapshot import check_record, restored, snapshot_of
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.errors import InvalidArgumentError
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import make_problem, make_spec, transition

WEIGHT = 0.3  # sums of it round
FORGETFUL = model_pb2.DriftOptions(detect=True, memory_visits=5.0, false_alarm_steps=6.0, on_detect="forget")


def known_counts(*, learned: bool = False) -> InitialCounts:
    """Some of each possible transition."""
    spec = make_problem(learned=learned)
    counts = np.where(spec.support, WEIGHT * np.arange(48).reshape(1, 4, 3, 4), 0.0)
    if not learned:
        return InitialCounts(counts)
    visits = counts.sum(axis=-1)
    return InitialCounts(counts, 0.25 * np.stack([visits] * 3), visits)


def warm_start(*, learned: bool = False) -> model_pb2.WarmStart:
    known = known_counts(learned=learned)
    tables = {name: table(np.asarray(values)) for name, values in known._asdict().items() if values is not None}
    return model_pb2.WarmStart(**tables, source="log.csv", rows=100, weight=WEIGHT, digest="0123456789abcdef" * 4)


def library_state(episodes: int, **fields: Any) -> tuple[AgentState, list[float]]:
    """After the same observations, with the predicted rewards."""
    learned = fields.get("learned", False)
    learner = definition_of(completed(make_spec(**fields), 60.0)).learner
    state, rewards = learner.initial_state(known_counts(learned=learned)), []
    for _ in range(episodes):
        state, plan = learner.start_episode(state)
        rewards.append(plan.predicted_reward)
        for step in range(3):
            signals = (0.5, 0.25, 0.75) if learned else learner.spec.signals[:, 0, 0, 1].tolist()
            state = learner.observe(state, Transition(step, 0, 1, 0, signals[0], tuple(signals[1:])))
    return learner.settle(state), rewards


async def play(bench: Bench, episodes: int, *, learned: bool = False) -> list[float]:
    signals: dict[str, Any] = {"reward": 0.5, "costs": [0.25, 0.75]} if learned else {}
    rewards = []
    for _ in range(episodes):
        started = await bench.start()
        rewards.append(started.predicted_reward)
        await bench.report_episode(started.episode, *[transition(**signals)] * 3)
    return rewards


def assert_equal_tables(ours: AgentState, theirs: AgentState) -> None:
    for name, table_of_ours in ours.tables._asdict().items():
        assert table_of_ours.tobytes() == getattr(theirs, name).tobytes(), name


@pytest.mark.parametrize("learned", [False, True], ids=["known", "learned"])
async def test_it_learns_what_the_library_learns_from_the_same_counts(bench: Bench, learned: bool) -> None:
    fields: dict[str, Any] = {"learned": learned}
    await bench.create(**fields, warm_start=warm_start(learned=learned))
    rewards = await play(bench, 5, learned=learned)
    expected, expected_rewards = library_state(5, **fields)
    assert rewards == expected_rewards
    assert_equal_tables(bench.record().state, expected)
    assert await bench.is_verified()


async def test_the_plan_is_another_than_without(new_bench: NewBench) -> None:
    warm, cold = await new_bench(), await new_bench()
    await warm.create(warm_start=warm_start())
    await cold.create()
    assert await play(warm, 1) != await play(cold, 1)


async def test_no_total_counts_it(bench: Bench) -> None:
    await bench.create(warm_start=warm_start())
    totals = bench.record().totals
    assert (totals.transitions, totals.completed_episodes, totals.reward) == (0, 0, 0.0)
    assert totals.violations == [0, 0]
    await play(bench, 1)
    assert (bench.record().totals.transitions, bench.record().totals.completed_episodes) == (3, 1)


async def test_it_survives_a_restart(new_bench: NewBench, tmp_path: Path) -> None:
    file = f"sqlite:{tmp_path / 'agents.db'}"
    first = await new_bench(file)
    await first.create(warm_start=warm_start())
    await play(first, 2)
    status, digest = record_status(first.record()), first.record().digest()
    await first.close()
    second = await new_bench(file)
    assert record_status(await second.agents.record("a")) == status
    assert second.record().digest() == digest
    assert await second.is_verified()


@pytest.mark.parametrize("learned", [False, True], ids=["known", "learned"])
async def test_a_copy_is_accepted_and_equal(bench: Bench, learned: bool) -> None:
    await bench.create(learned=learned, warm_start=warm_start(learned=learned))
    await play(bench, 2, learned=learned)
    data = snapshot_of(bench.record(), with_policies=True).SerializeToString()
    copy = restored("copy", data)
    check_record(copy)
    assert_equal_tables(copy.state, bench.record().state)


@pytest.mark.parametrize("factor", [0.5, 1.5])
async def test_a_copy_with_other_counts_is_refused(bench: Bench, factor: float) -> None:
    await bench.create(warm_start=warm_start())
    await play(bench, 2)
    snapshot: events_pb2.Snapshot = snapshot_of(bench.record(), with_policies=True)
    snapshot.spec.warm_start.transition_counts.values[:] = [
        factor * value for value in snapshot.spec.warm_start.transition_counts.values
    ]
    with pytest.raises(ValueError, match="transitions"):
        check_record(restored("copy", snapshot.SerializeToString()))


async def test_drift_forgets_it(bench: Bench) -> None:
    """The counts are far from what is observed, and are gone after the detection; so are the pairs never visited."""
    await bench.create(warm_start=warm_start(), drift=FORGETFUL)
    assert bench.record().visited_ratio == 1.0
    await play(bench, 40)
    record = bench.record()
    assert record.totals.drift_detections > 0
    counts = record.state.transition_counts
    assert counts[0, 0, 1, 0] == counts.sum() < known_counts_total()
    assert record.visited_pairs == 1
    assert await bench.is_verified()


def known_counts_total() -> float:
    return float(np.sum(known_counts().transition_counts))


async def test_it_cannot_be_updated(bench: Bench) -> None:
    await bench.create(warm_start=warm_start())
    request = admin_pb2.UpdateAgentRequest(agent="a", update=model_pb2.AgentSpec(warm_start=warm_start()))
    request.update_mask.paths.append("warm_start")
    with pytest.raises(InvalidArgumentError, match="cannot be updated"):
        await bench.administration.update(request)


def set_entry(name: str, place: int, value: float) -> Callable[[model_pb2.WarmStart], None]:
    def change(given: model_pb2.WarmStart) -> None:
        getattr(given, name).values[place] = value

    return change


def set_field(name: str, value: Any) -> Callable[[model_pb2.WarmStart], None]:
    return lambda given: setattr(given, name, value)


def reshape(given: model_pb2.WarmStart) -> None:
    given.transition_counts.shape[:] = [4, 3, 4]


MISTAKES = {
    "negative": (set_entry("transition_counts", 2, -1.0), r"transition_counts\[0\]\[0\]\[0\]\[2\]: must not be negative"),
    "infinite": (set_entry("transition_counts", 2, math.inf), "transition_counts.*: must be finite"),
    "outside the support": (set_entry("transition_counts", 17, 1.0), "must be 0 outside the support"),
    "huge": (set_entry("transition_counts", 2, 1e13), "sum of transition_counts: must be at most 1e.12"),
    "shape": (reshape, "shape of transition_counts: must be"),
    "absent": (lambda given: given.ClearField("transition_counts"), "transition_counts"),
    "sums": (set_entry("signal_sums", 4, 1e6), "signal_sums.*: must be at most the visits"),
    "visits": (set_entry("visits", 4, 1e6), "visits.*: must be at most the counts"),
    "no visits": (lambda given: given.ClearField("visits"), "signal_sums: must be given together with visits"),
    "no weight": (set_field("weight", 0.0), "weight: must be above 0"),
    "weight": (set_field("weight", math.nan), "weight: must be above 0"),
    "rows": (set_field("rows", 0), "rows: must be from 1"),
    "digest": (set_field("digest", "abc"), "digest: must be a SHA-256"),
    "source": (set_field("source", "x" * 501), "source: must be at most 500 characters"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_is_named(bench: Bench, mistake: str) -> None:
    change, message = MISTAKES[mistake]
    given = warm_start(learned=True)
    change(given)
    with pytest.raises(InvalidArgumentError, match=f"^spec.warm_start.*{message}"):
        await bench.create(learned=True, warm_start=given)


async def test_sums_of_signals_that_are_known_are_refused(bench: Bench) -> None:
    with pytest.raises(InvalidArgumentError, match="signal_sums: must be left out"):
        await bench.create(warm_start=warm_start(learned=True))
