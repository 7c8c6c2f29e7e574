"""Late feedback replaces what was reported, once and exactly: as if it had been reported so at first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import transition


def steps(*signals: tuple[float, float, float]) -> list[control_pb2.Transition]:
    return [transition(reward=reward, costs=[energy, wear]) for reward, energy, wear in signals]


REPORTED = steps((0.5, 0.0, 0.0), (0.25, 0.5, 0.25), (0.0, 0.25, 0.5))
CORRECTED = steps((1.0, 1.0, 0.5), (0.25, 0.5, 0.25), (0.75, 0.25, 0.5))


async def correct(bench: Bench, episode: int = 1, step: int = 0, **fields: Any) -> bool:
    request = control_pb2.CorrectSignalRequest(agent="a", episode=episode, step=step, **fields)
    return bool(await bench.commands.correct_signal(request))


async def correct_all(bench: Bench) -> None:
    assert not await correct(bench, reward=1.0, costs=[1.0, 0.5])
    assert not await correct(bench, step=2, reward=0.75)


@pytest.mark.parametrize("when", ["open", "completed"])
@pytest.mark.parametrize("mode", ["live", "shadow"])
async def test_it_is_as_if_it_had_been_reported_so(new_bench: NewBench, when: str, mode: str) -> None:
    """Tables, totals, recent episodes, and those of shadow; but for the greatest and the last."""
    bench, twin = await new_bench(), await new_bench()
    for one, path in ((bench, REPORTED), (twin, CORRECTED)):
        await one.begin(learned=True, mode=mode)
        await one.report_episode(1, *(path[:2] if when == "open" else path))
    if when == "open":
        assert not await correct(bench, reward=1.0, costs=[1.0, 0.5])
        await bench.report_episode(1, *REPORTED)
        assert not await correct(bench, step=2, reward=0.75)
        await twin.report_episode(1, *CORRECTED)
    else:
        await correct_all(bench)
    ours, theirs = bench.record(), twin.record()
    for mine, other in zip(ours.state.tables, theirs.state.tables, strict=True):
        assert np.allclose(mine, other, atol=1e-15)
    message, expected = ours.totals.message(), theirs.totals.message()
    for totals in (message, expected):
        for name in ("last_reward", "last_costs", "constraint_regret_max"):
            totals.ClearField(name)
    assert message == expected
    assert ours.recent.episodes == theirs.recent.episodes
    assert await bench.is_verified()


async def test_a_repetition_changes_nothing_and_a_contradiction_is_refused(bench: Bench) -> None:
    await bench.begin(learned=True)
    await bench.report_episode(1, *REPORTED)
    await correct_all(bench)
    version = bench.record().version
    assert await correct(bench, reward=1.0, costs=[1.0, 0.5])
    with pytest.raises(AlreadyExistsError, match="step 0 of episode 1 was corrected with other values"):
        await correct(bench, reward=1.0)
    assert (await bench.report_episode(1, *REPORTED)).duplicates == 3, "a repeated report is compared with the first one"
    assert bench.record().version == version


@pytest.mark.parametrize("how", ["events", "snapshot", "import"])
async def test_a_correction_outlives_a_restart(new_bench: NewBench, tmp_path: Path, how: str) -> None:
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.begin(learned=True)
    await bench.report_episode(1, *REPORTED[:2])
    assert not await correct(bench, reward=1.0)
    before = snapshot_of(bench.record(), with_policies=True)
    if how == "import":
        await bench.administration.import_snapshot("b", before)
        assert bench.record("b").episodes[1].corrections == bench.record().episodes[1].corrections
        return
    if how == "snapshot":
        await bench.snapshot()
    await bench.close()
    again = await new_bench(f"sqlite:{tmp_path}")
    assert await correct(again, reward=1.0), "it is known there, too"
    assert snapshot_of(again.record(), with_policies=True) == before


async def test_an_impossible_correction_is_not_imported(bench: Bench) -> None:
    await bench.begin(learned=True)
    await bench.report_episode(1, *REPORTED[:2])
    assert not await correct(bench, reward=1.0)
    snapshot = snapshot_of(bench.record(), with_policies=True)
    for field, value in (("step", 2), ("reward", 7.0), ("episode", 3)):
        broken = type(snapshot)()
        broken.CopyFrom(snapshot)
        setattr(broken.episodes[0].corrections[0], field, value)
        with pytest.raises(InvalidArgumentError, match="episode 1"):
            await bench.administration.import_snapshot("b", broken)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "reward: or costs must be given"),
        ({"reward": 1.5}, "reward: must be a number from 0 to 1"),
        ({"costs": [0.5]}, "costs: must have 2 entries, one per constraint, got 1"),
        ({"costs": [0.5, float("nan")]}, r"costs\[1\]: must be a number"),
        ({"reward": 0.5, "step": 3}, "step: must be from 0 to 2"),
    ],
)
async def test_impossible_values_are_refused(bench: Bench, fields: dict[str, Any], complaint: str) -> None:
    await bench.begin(learned=True)
    await bench.report_episode(1, *REPORTED)
    with pytest.raises(InvalidArgumentError, match=complaint):
        await correct(bench, **fields)


async def test_known_signals_and_unreported_steps_are_refused(bench: Bench) -> None:
    await bench.begin()
    await bench.report(transition(), episode=1, step=0)
    for fields in ({"reward": 0.5}, {"costs": [0.1, 0.1]}, {"costs": [0.5, 0.0]}):
        with pytest.raises(InvalidArgumentError, match="known in state 0 with action 1: only what is learned"):
            await correct(bench, **fields)
    with pytest.raises(FailedPreconditionError, match="step 1 of episode 1 was not reported"):
        await correct(bench, step=1, reward=0.5)


async def test_an_episode_that_is_not_kept_is_refused(bench: Bench) -> None:
    await bench.create(learned=True)
    for number in (1, 2, 3):
        await bench.start()
        await bench.report_episode(number, *REPORTED)
    await bench.start()
    with pytest.raises(FailedPreconditionError, match="episode 2 is closed and no longer kept"):
        await correct(bench, episode=2, reward=1.0)
    assert not await correct(bench, episode=3, reward=1.0)


async def test_a_correction_can_exceed_the_guard(bench: Bench) -> None:
    """In the same commit, as a report does."""
    await bench.begin(learned=True, guard=model_pb2.Guard(max_strong_violation=0.5))
    await bench.report_episode(1, *steps((0.5, 0.5, 0.0), (0.5, 0.5, 0.0), (0.5, 0.5, 0.0)))
    assert not await correct(bench, costs=[0.75, 0.0])
    assert not bench.record().paused
    assert not await correct(bench, step=1, costs=[1.0, 0.0])
    record = bench.record()
    assert record.paused_by_guard
    assert record.totals.guarded_violation[0] == pytest.approx(0.75)


@pytest.mark.parametrize(
    "drift", [{"half_life_visits": 5.0}, {"memory_visits": 2, "false_alarm_steps": 1.1, "on_detect": "forget"}]
)
async def test_what_counts_less_by_now_cannot_be_corrected(bench: Bench, drift: dict[str, Any]) -> None:
    await bench.create(learned=True, drift=model_pb2.DriftOptions(**drift))
    number, signals = 0, {"reward": 0.5, "costs": [0.0, 0.0], "terminal": True}
    while number < 2 or not (bench.record().totals.drift_detections or "half_life_visits" in drift):
        if number:
            await bench.report_episode(number, transition(0, 1, 0 if number < 20 else 3, **signals))
        number = (await bench.start()).episode
    with pytest.raises(
        FailedPreconditionError, match="cannot be corrected: half_life_visits or forgetting after drift has reduced"
    ):
        await correct(bench, episode=number - 1, reward=1.0)
    await bench.report(REPORTED[0], episode=number, step=0)
    if "half_life_visits" not in drift:
        assert not await correct(bench, episode=number, reward=1.0), "after the detection it counts in full"


async def test_a_half_life_that_was_switched_off_still_forbids(bench: Bench) -> None:
    await bench.begin(learned=True, drift=model_pb2.DriftOptions(half_life_visits=5.0))
    await bench.report_episode(1, *REPORTED[:2])
    request = admin_pb2.UpdateAgentRequest(agent="a", update=model_pb2.AgentSpec(drift=model_pb2.DriftOptions()))
    request.update_mask.paths.append("drift")
    await bench.administration.update(request)
    with pytest.raises(FailedPreconditionError, match="has reduced the weight of its steps since"):
        await correct(bench, reward=1.0)
