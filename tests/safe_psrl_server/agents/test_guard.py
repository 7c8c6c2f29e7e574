"""A guard pauses its agent in the commit that exceeds a limit, once, and again only after it was resumed."""

from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.errors import FailedPreconditionError, InvalidArgumentError
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import transition

BUDGET = 1.5  # of the constraint `energy`


def guard(**limits: Any) -> dict[str, Any]:
    return {"guard": model_pb2.Guard(**limits)}


def path(cost: float) -> list[control_pb2.Transition]:
    return [transition(reward=0.5, costs=[cost / 3, 0.0])] * 3


async def play(bench: Bench, *costs: float) -> None:
    for cost in costs:
        started = await bench.start()
        await bench.report_episode(started.episode, *path(cost))


def guarded(bench: Bench) -> list[events_pb2.LogEntry]:
    return [entry for entry in bench.record().log if entry.kind == events_pb2.LOG_KIND_GUARDED]


async def test_constraint_regret_above_its_limit_pauses(bench: Bench) -> None:
    """Signed: episodes below the budget make room."""
    await bench.create(**guard(max_constraint_regret=1.0))
    await play(bench, 1.0, 3.0, 1.4)
    assert not bench.record().paused
    await play(bench, 1.7)
    record = bench.record()
    assert record.paused
    assert record.paused_by_guard
    assert "constraint regret of energy is" in record.pause_reason
    assert len(guarded(bench)) == 1
    assert record_status(record).paused_by_guard
    with pytest.raises(FailedPreconditionError, match="guard: the constraint regret of energy"):
        await bench.start()
    assert await bench.is_verified()


async def test_strong_violation_above_its_limit_pauses(bench: Bench) -> None:
    """No episode pays for another."""
    await bench.create(**guard(max_strong_violation=1.0))
    await play(bench, 0.0, 2.4, 0.0)
    assert not bench.record().paused
    await play(bench, 1.7)
    assert "strong violation of energy is 1.1, above 1" in bench.record().pause_reason


async def test_resuming_begins_anew(bench: Bench) -> None:
    await bench.create(**guard(max_strong_violation=1.0))
    await play(bench, 3.0)
    assert bench.record().paused
    await bench.administration.resume("a")
    assert not bench.record().paused_by_guard
    await play(bench, 2.0)
    assert not bench.record().paused
    await play(bench, 2.1)
    assert bench.record().paused
    assert len(guarded(bench)) == 2
    assert bench.record().totals.strong_violation[0] == pytest.approx(1.5 + 0.5 + 0.6)


async def test_with_the_next_episode_in_the_same_call(bench: Bench) -> None:
    """The report is applied, the agent is paused, and no episode starts; a repetition says so again."""
    await bench.create(**guard(max_strong_violation=1.0))
    started = await bench.start()
    following = control_pb2.StartEpisodeRequest(state=0)
    request = control_pb2.ReportEpisodeRequest(agent="a", episode=started.episode, transitions=path(3.0), next=following)
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match="guard"):
            await bench.commands.report_episode(request)
    record = bench.record()
    assert (record.totals.completed_episodes, record.episode, record.totals.transitions) == (1, 1, 3)
    assert len(guarded(bench)) == 1
    assert await bench.is_verified()


async def test_step_by_step_the_last_step_is_acknowledged(bench: Bench) -> None:
    await bench.create(**guard(max_strong_violation=1.0))
    started = await bench.start()
    for step, moved in enumerate(path(3.0)):
        reported = await bench.report(moved, episode=started.episode, step=step)
    assert reported.done
    assert bench.record().paused


async def test_the_step_that_exceeds_can_be_repeated(bench: Bench) -> None:
    """Its reply may have been lost: a repetition gets the same one, though the agent is paused."""
    await bench.create(**guard(max_strong_violation=1.0))
    await bench.start()
    replies = [await bench.stepped(path(3.0)[step], episode=1, step=step) for step in (0, 1, 2, 2)]
    assert bench.record().paused_by_guard
    assert [(reply.episode_done, reply.duplicate) for reply in replies[2:]] == [(True, False), (True, True)]
    assert len(guarded(bench)) == 1
    with pytest.raises(FailedPreconditionError, match="guard"):
        await bench.stepped(path(3.0)[1], episode=1, step=1)


async def test_an_abandoned_episode_is_not_counted(bench: Bench) -> None:
    await bench.create(**guard(max_strong_violation=1.0))
    started = await bench.start()
    await bench.report(path(3.0)[0], episode=started.episode)
    await bench.end(started.episode)
    assert not bench.record().paused


async def test_drift_pauses_whatever_it_does_else(bench: Bench) -> None:
    drift = model_pb2.DriftOptions(memory_visits=2, false_alarm_steps=1.1, on_detect="forget")
    await bench.create(drift=drift, **guard(on_drift=True))
    steps = [[transition(0, 0, 0)] * 3] * 6 + [[transition(0, 0, 3), transition(3, 0, 3), transition(3, 0, 3)]] * 6

    async def report_all() -> None:
        for moves in steps:
            await bench.report_episode((await bench.start()).episode, *moves)

    with pytest.raises(FailedPreconditionError, match="paused: drift was detected"):
        await report_all()
    assert bench.record().paused_by_guard
    assert bench.record().totals.drift_detections == 1
    assert bench.record().state.transition_counts.sum() < bench.record().totals.transitions, "it forgot, too"


@pytest.mark.parametrize("limits", [{"max_constraint_regret": 0.0}, {"max_strong_violation": float("nan")}])
async def test_an_impossible_limit_is_refused(bench: Bench, limits: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"spec.guard.{next(iter(limits))}"):
        await bench.create(**guard(**limits))


@pytest.mark.parametrize("snapshot", [False, True])
async def test_after_a_restart_it_is_paused_once(new_bench: NewBench, tmp_path: Path, snapshot: bool) -> None:
    """Exceeding and pausing are one commit."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create(**guard(max_strong_violation=1.0))
    await play(bench, 3.0)
    if snapshot:
        await bench.snapshot()
    await bench.close()
    again = await new_bench(f"sqlite:{tmp_path}")
    with pytest.raises(FailedPreconditionError, match="guard"):
        await again.start()
    assert len(guarded(again)) == 1
    assert again.record().paused_by_guard
