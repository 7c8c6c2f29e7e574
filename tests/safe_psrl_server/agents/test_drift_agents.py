"""Drift through the service: the library's statistics to the bit, one event, and what it does to the agent."""

from pathlib import Path
from typing import Any

import pytest

from safe_psrl import Transition
from safe_psrl.learner import AgentState
from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.definition import completed, definition_of
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import FailedPreconditionError
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import make_spec, transition

SETTINGS = {"detect": True, "memory_visits": 5.0, "false_alarm_steps": 6.0}
PATHS = [[0, 0, 0]] * 12 + [[1, 0, 1], [2, 0, 0], [1, 0, 2]] * 4  # the third states of episodes: the kernel changes


def path_of(ends: list[int]) -> list[control_pb2.Transition]:
    steps, state = [], 0
    for following in ends:
        steps.append(transition(state, 1 if state else 0, following))
        state = following
    return steps


def drifting(on_detect: str, **more: Any) -> dict[str, Any]:
    return {"drift": model_pb2.DriftOptions(**SETTINGS, on_detect=on_detect, **more)}


async def play(bench: Bench, paths: list[list[int]]) -> None:
    for ends in paths:
        started = await bench.start()
        await bench.report_episode(started.episode, *path_of(ends))


def detections(bench: Bench) -> int:
    return sum(entry.kind == events_pb2.LOG_KIND_DRIFT_DETECTED for entry in bench.record().log)


def library_state(paths: list[list[int]], **fields: Any) -> tuple[AgentState, int]:
    """The library's own state after the same observations, and how often it detected drift."""
    learner = definition_of(completed(make_spec(**fields), 60.0)).learner
    state, found = learner.initial_state(), 0
    for ends in paths:
        state, plan = learner.start_episode(state)
        found += plan.drift is not None and plan.drift.detected
        for step, moved in enumerate(path_of(ends)):
            now, signals = (moved.state, moved.action), learner.spec.signals[:, 0, moved.state, moved.action].tolist()
            state = learner.observe(state, Transition(step, *now, moved.next_state, signals[0], tuple(signals[1:])))
    return learner.settle(state), found


@pytest.mark.parametrize("more", [{}, {"half_life_visits": 3.0}], ids=["for ever", "half-life"])
@pytest.mark.parametrize("on_detect", ["alert", "forget"])
async def test_the_service_detects_what_the_library_detects(bench: Bench, on_detect: str, more: dict[str, float]) -> None:
    fields = drifting(on_detect, **more)
    await bench.create(**fields)
    await play(bench, PATHS)
    expected, found = library_state(PATHS, **fields)
    assert detections(bench) == bench.record().totals.drift_detections == found > 0
    for ours, theirs in zip(bench.record().state.tables, expected.tables, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert await bench.is_verified()


async def test_step_by_step_is_the_same(bench: Bench) -> None:
    """However the steps are reported."""
    await bench.create(**drifting("forget"))
    for ends in PATHS:
        started = await bench.start()
        for step, moved in enumerate(path_of(ends)):
            await bench.report(moved, episode=started.episode, step=step)
    expected, found = library_state(PATHS, **drifting("forget"))
    assert detections(bench) == found
    assert bench.record().state.transition_counts.tobytes() == expected.transition_counts.tobytes()


async def test_in_one_call_with_the_next_episode(bench: Bench) -> None:
    """A trajectory that raises the alarm, and the episode that is planned without what was forgotten, are one commit."""
    await bench.create(**drifting("forget"))
    started = await bench.start()
    for ends in PATHS:
        following = control_pb2.StartEpisodeRequest(state=0)
        request = control_pb2.ReportEpisodeRequest(
            agent="a", episode=started.episode, transitions=path_of(ends), next=following
        )
        started = (await bench.commands.report_episode(request)).next
    expected, found = library_state([*PATHS, []], **drifting("forget"))
    assert detections(bench) == found
    assert bench.record().state.transition_counts.tobytes() == expected.transition_counts.tobytes()
    assert await bench.is_verified()


async def test_the_event_names_the_rows_and_what_was_done(bench: Bench) -> None:
    await bench.create(**drifting("forget"))
    await play(bench, PATHS)
    entry = next(entry for entry in bench.record().log if entry.kind == events_pb2.LOG_KIND_DRIFT_DETECTED)
    assert "forgotten" in entry.details[0]
    assert entry.details[1].startswith("state 0, action 0: ")
    assert (entry.rows[0].state, entry.rows[0].action) == (0, 0)
    status = record_status(bench.record())
    assert status.drift_detections == detections(bench)
    assert status.drift_micros > 0
    assert status.on_detect == "forget"


async def test_pause_stops_new_episodes_at_once(bench: Bench) -> None:
    """The call that would have started an episode is refused; the fallback policy acts; resuming goes on."""
    await bench.create(**drifting("pause"), fallback=True)
    with pytest.raises(FailedPreconditionError, match="paused: drift was detected"):
        await play(bench, PATHS)
    record = bench.record()
    assert record.paused
    assert detections(bench) == 1
    version = record.version
    with pytest.raises(FailedPreconditionError, match="paused"):
        await bench.start()
    assert record.version == version
    assert (await bench.act(0)).fallback
    assert await bench.is_verified()
    await bench.administration.resume("a")
    await bench.start()
    assert detections(bench) == 1


@pytest.mark.parametrize("snapshot", [False, True])
async def test_recovery_and_import_have_the_same_statistics(new_bench: NewBench, tmp_path: Path, snapshot: bool) -> None:
    """After a restart in the middle of the change, and in an imported copy: detection comes at the same episode."""
    whole = await new_bench()
    await whole.create(**drifting("forget"))
    await play(whole, PATHS)
    first = await new_bench(f"sqlite:{tmp_path}")
    await first.create(**drifting("forget"))
    await play(first, PATHS[:13])
    if snapshot:
        await first.snapshot()
    exported = snapshot_of(first.record(), with_policies=True)
    await first.close()
    again = await new_bench(f"sqlite:{tmp_path}")
    await play(again, PATHS[13:])
    other = await new_bench()
    await other.administration.import_snapshot("a", exported)
    await play(other, PATHS[13:])
    for bench in (again, other):
        assert bench.record().totals.drift_detections == whole.record().totals.drift_detections > 0
        for ours, theirs in zip(bench.record().state.tables, whole.record().state.tables, strict=True):
            assert ours.tobytes() == theirs.tobytes()
        assert await bench.is_verified()


async def test_two_replicas_detect_it_once(new_bench: NewBench, database: str) -> None:
    """Episodes by turns on both: the statistics are those of one server, and so is the event."""
    pair = [await new_bench(database), await new_bench(database)]
    await pair[0].create(**drifting("forget"))
    for number, ends in enumerate(PATHS):
        started = await pair[number % 2].start()
        await pair[(number // 2) % 2].report_episode(started.episode, *path_of(ends))
    expected, found = library_state(PATHS, **drifting("forget"))
    for bench in pair:
        record = await bench.agents.record("a")
        assert record.totals.drift_detections == found > 0
        assert record.state.transition_counts.tobytes() == expected.transition_counts.tobytes()
        assert record.state.drift_statistics.tobytes() == expected.drift_statistics.tobytes()
        assert await bench.is_verified()


def test_detection_is_on_by_default_unless_the_tables_are_large() -> None:
    small = completed(make_spec(), 60.0)
    assert small.drift.detect
    assert small.drift.on_detect == "alert"
    large = make_spec()
    large.cmdp.num_states = 3_000_000
    assert not completed(large, Limits().episode_timeout_seconds).drift.detect
