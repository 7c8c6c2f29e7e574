"""Experiments in which the world changes: rows, summary, figures, checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt

from safe_psrl import DriftOptions, SafePsrl, SafePsrlOptions, SimulatedRun
from safe_psrl_experiments import figures
from safe_psrl_experiments.experiment import Experiment, caption_of
from safe_psrl_experiments.results import RunRecord, comparison_table, recorded_episodes, summary_of
from safe_psrl_experiments.runs import Job, run_job
from safe_psrl_testbed import changing_scenario, scenario_named

FIRST, LATER = "streaming-buffer:departure=0.3", "streaming-buffer:departure=0.9"
FORGET = {"drift.on_detect": "forget", "drift.false_alarm_steps": 1e3}
SUMMED = ("objective_regret", "constraint_regret", "strong_violation", "priced_regret", "violating_episodes", "detections")


def job(episodes: int = 900, after: int = 600, **changes: Any) -> Job:
    return Job(FIRST, "certified", 1, episodes, FORGET, **({"then": (f"{LATER}@{after}",)} | changes))


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return run_job(job(), lambda _: None, never)


def test_rows_are_recorded_at_a_change_and_densely_after_it() -> None:
    rows = recorded_episodes(35_000, [30_000])
    assert {30_000, 30_001, 30_002, 35_000} <= set(rows)
    assert set(recorded_episodes(35_000)) <= set(rows)
    assert rows == sorted(set(rows))


def test_a_job_is_the_librarys_run_moved_to_the_other_kernel(record: RunRecord) -> None:
    drift = DriftOptions(detect=True, on_detect="forget", false_alarm_steps=1e3)
    learner = SafePsrl(scenario_named(FIRST).spec, SafePsrlOptions("certified"), seed=1, drift=drift)
    run = SimulatedRun(learner, scenario_named(FIRST).transitions_for(1), environment_seed=1)
    run.advance(600)
    start = next(row for row in record.rows if row["episode"] == 600)
    assert start["objective_regret"] == run.ledger.objective_regret[0]
    run.move_to(scenario_named(LATER).transitions_for(1))
    run.advance(300)
    for column in SUMMED:
        assert record.rows[-1][column] == getattr(run.ledger, column)[0]
    assert record.rows[-1]["detections"] > start["detections"]


def test_a_walk_moves_the_world_at_each_of_its_moments() -> None:
    record = run_job(Job(FIRST, "safe-psrl", 2, 250, {}, (), "departure=0.2@100"), lambda _: None, never)
    scenario = scenario_named(FIRST)
    run = SimulatedRun(SafePsrl(scenario.spec, seed=2), scenario.transitions_for(2), environment_seed=2)
    for after, kernel in changing_scenario(FIRST, walk="departure=0.2@100").changes_for(2, 250).items():
        run.advance(after - run.episode)
        run.move_to(kernel)
    run.advance(50)
    assert record.rows[-1]["objective_regret"] == run.ledger.objective_regret[0]
    assert [row["episode"] for row in record.rows] == recorded_episodes(250)


@pytest.mark.parametrize("stop", [300, 600, 620])
def test_a_run_that_was_stopped_resumes_in_the_world_of_its_episode(tmp_path: Path, record: RunRecord, stop: int) -> None:
    reports: list[int] = []
    run_job(job(), reports.append, lambda: sum(reports) >= stop, tmp_path)
    again: list[int] = []
    resumed = run_job(job(), again.append, never, tmp_path)
    assert again[0] >= stop
    assert resumed.rows == record.rows


def test_another_later_world_is_another_job(tmp_path: Path) -> None:
    """The file's path is the same, its kernel is not: no checkpoint of the previous world is used."""
    path = tmp_path / "later.json"
    shapes = scenario_named(LATER)
    from safe_psrl.problem.documents import spec_to_document  # noqa: PLC0415

    for kernel in (shapes.transitions_for(1), scenario_named(FIRST).transitions_for(1)):
        document = spec_to_document(shapes.spec) | {"transitions": kernel[0].tolist()}
        path.write_text(json.dumps(document), encoding="utf-8")
        reports: list[int] = []
        changed = job(40, 20, then=(f"{path}@20",))
        run_job(changed, reports.append, lambda: sum(reports) >= 10, tmp_path / "checkpoints")  # noqa: B023
        assert reports[0] == 0


def test_the_summary_has_what_was_before_the_change_and_since(record: RunRecord) -> None:
    spec = scenario_named(FIRST).spec
    summary = summary_of(spec, FIRST, 900, [record], changes=[(600, LATER)])
    values = summary["algorithms"]["certified"]
    assert summary["changes"] == [{"after_episodes": 600, "environment": LATER}]
    start, end = (next(row for row in record.rows if row["episode"] == k) for k in (600, 900))
    before, since = values["before_change"], values["since_change"]
    assert (before["episodes"], since["episodes"]) == (600, 300)
    for column in SUMMED:
        assert before[column]["per_seed"] == [start[column]]
        assert since[column]["per_seed"] == [end[column] - start[column]]
    found = next(row for row in record.rows if row["episode"] > 600 and row["detections"] > start["detections"])
    assert since["detection_delay"] == {"median": found["episode"] - 600, "per_seed": [found["episode"] - 600]}
    table = comparison_table(summary)
    assert f"Before the change to {LATER} after 600 episodes, and since" in table
    assert "| certified | since | 300 |" in table


def test_of_several_changes_the_last_that_all_runs_have_seen_counts(record: RunRecord) -> None:
    spec, changes = scenario_named(FIRST).spec, [(1, LATER), (600, LATER), (900, FIRST), (5_000, LATER)]
    values = summary_of(spec, FIRST, 6_000, [record], changes=changes)["algorithms"]["certified"]
    assert values["before_change"]["episodes"] == 600
    assert "since_change" not in summary_of(spec, FIRST, 6_000, [record], changes=[(5_000, LATER)])["algorithms"]["certified"]


def test_a_change_that_is_not_detected_has_no_delay() -> None:
    spec = scenario_named(FIRST).spec
    unwatched = run_job(Job(FIRST, "safe-psrl", 1, 40, {}, (f"{LATER}@20",)), lambda _: None, never)
    since = summary_of(spec, FIRST, 40, [unwatched], changes=[(20, LATER)])["algorithms"]["safe-psrl"]["since_change"]
    assert since["detection_delay"] == {"median": None, "per_seed": [None]}


def test_a_setting_of_the_detector_turns_it_on_and_forgetting_alone_does_not() -> None:
    for parameters, watched in (({"drift.memory_visits": 50}, True), ({"drift.half_life_visits": 50}, False), ({}, None)):
        caption = caption_of(
            Experiment(FIRST, ["certified"], 10, 1, {"certified": parameters}),
            {"seeds": 1, "episodes": 10, "interrupted": False},
        )
        assert (f"drift.detect {watched}" in caption) is (watched is not None)
        assert ("triangle: drift detected" in caption) is bool(watched)


def test_half_life_reaches_the_learner() -> None:
    plain, discounted = (
        run_job(Job(FIRST, "certified", 1, 60, parameters), lambda _: None, never).rows[-1]
        for parameters in ({}, {"drift.half_life_visits": 5})
    )
    assert plain["objective_regret"] != discounted["objective_regret"]


def test_the_figures_mark_the_change_and_the_detections(
    tmp_path: Path, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "save_figure", lambda _path, figure, _caption: drawn.append(figure))
    monkeypatch.setattr(plt, "close", lambda _figure: None)
    figures.draw_figures(tmp_path, scenario_named(FIRST).spec, [record], "", [600])
    monkeypatch.undo()
    for figure in drawn:
        for axis in figure.axes:
            lines = axis.get_lines()
            assert [line.get_xdata()[0] for line in lines if line.get_linestyle() == ":"] == [600]
            (marks,) = (line for line in lines if line.get_marker() == "^")
            assert len(marks.get_xdata()) >= 1
            assert marks.get_xdata()[0] > 600
        plt.close(figure)
    assert len(drawn) == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_forgetting_keeps_the_budget_after_a_change_and_halves_the_regret(seed: int) -> None:
    """The claim of docs/drift.md, with a sixth of its episodes."""
    first, later = "streaming-buffer:departure=0.5", "streaming-buffer:departure=0.9@5000"
    forgetting, plain = (
        run_job(Job(first, "certified", seed, 6_000, parameters, (later,)), lambda _: None, never)
        for parameters in ({"drift.on_detect": "forget"}, {})
    )
    spec = scenario_named(first).spec
    with_, without = (
        summary_of(spec, first, 6_000, [record], changes=[(5_000, later)])["algorithms"]["certified"]["since_change"]
        for record in (forgetting, plain)
    )
    assert with_["violating_episodes"]["mean"] <= 60
    assert without["violating_episodes"]["mean"] >= 700
    assert with_["constraint_regret"]["mean"] <= 30
    assert with_["objective_regret"]["mean"] <= without["objective_regret"]["mean"] / 2
    assert with_["detection_delay"]["median"] <= 60


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "horizon"), [("streaming-buffer", 10), ("inventory", 7), ("factored-toy", 6)])
def test_without_a_change_no_drift_is_detected_in_a_tenth_of_the_stated_steps(environment: str, horizon: int) -> None:
    job = Job(environment, "certified", 1, 100_000 // horizon, {"drift.false_alarm_steps": 1e6})
    assert run_job(job, lambda _: None, never).rows[-1]["detections"] == 0
