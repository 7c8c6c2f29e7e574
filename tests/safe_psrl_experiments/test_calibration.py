"""Calibration: shares of episodes above the budget over kernels drawn from the prior, their standard error, and the files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from safe_psrl import SpecError
from safe_psrl_experiments.calibration import (
    Calibration,
    calibration_figure,
    calibration_table,
    level_of,
    run_calibration,
)
from safe_psrl_experiments.results import RunRecord
from safe_psrl_experiments.runs import Job, run_job


def record(seed: int, above: int, episodes: int = 100, *, finished: bool = True) -> RunRecord:
    row = {"episode": episodes, "violating_episodes": above, "strong_violation": 0.5 * above, "objective_regret": 30.0}
    return RunRecord("certified", seed, [row], 1.0, 1.0, [1.0], finished)


@pytest.fixture
def jobs_run(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Runs in this process; the jobs that were run."""
    seen: list[Job] = []

    def run_jobs(jobs: Sequence[Job], _processes: int, report: Callable[[int], None], _checkpoints: Path) -> list[RunRecord]:
        seen.extend(jobs)
        return [run_job(job, report, lambda: False) for job in jobs]

    monkeypatch.setattr("safe_psrl_experiments.calibration.run_jobs", run_jobs)
    return seen


def test_the_share_is_a_mean_over_kernels_with_its_standard_error() -> None:
    level = level_of(0.95, [record(1, 0), record(2, 0), record(3, 12), record(4, 4)])
    assert level["share"] == pytest.approx(0.04)
    assert level["standard_error"] == pytest.approx(0.0282843, rel=1e-5)  # sqrt(((4, 4, 8, 0) squared, summed) / 3 / 4) / 100
    assert (level["kernels"], level["kernels_above"]) == (4, 2)
    assert level["allowed"] == pytest.approx(0.05)
    assert level["strong_violation_per_episode"] == pytest.approx(0.02)


@pytest.mark.parametrize(("above", "within"), [((5, 5), True), ((6, 6), False), ((0, 14), True), ((6, 14), False)])
def test_what_is_allowed_is_one_less_the_confidence_up_to_a_standard_error(above: tuple[int, int], within: bool) -> None:
    assert level_of(0.95, [record(seed, count) for seed, count in enumerate(above)])["within"] == within


def test_every_confidence_plays_the_same_kernels_of_the_prior(jobs_run: list[Job], tmp_path: Path) -> None:
    reports: list[int] = []
    calibration = Calibration("factored-toy", (0.6, 0.99), kernels=3, episodes=40)
    outcome = run_calibration(calibration, tmp_path, 1, reports.append)
    assert outcome is not None
    assert [(job.environment, job.seed, job.parameters["confidence"]) for job in jobs_run] == [
        ("prior:factored-toy", seed, confidence) for confidence in (0.6, 0.99) for seed in (1, 2, 3)
    ]
    assert sum(reports) == calibration.total_episodes == 240
    assert not outcome.summary["interrupted"]
    assert [level["confidence"] for level in outcome.summary["levels"]] == [0.6, 0.99]
    assert json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8")) == outcome.summary
    assert "2 of 3" in calibration_table({**outcome.summary, "levels": [{**outcome.summary["levels"][0], "kernels_above": 2}]})
    image = (tmp_path / "calibration.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert b"3 kernels drawn from the prior" in image
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibration.json", "calibration.md", "calibration.png"]


def test_the_figure_has_each_level_at_its_place() -> None:
    levels = [level_of(0.9, [record(1, 4), record(2, 8)]), level_of(0.99, [record(1, 0), record(2, 1)])]
    figure = calibration_figure({"environment": "e", "kernels": 2, "episodes": 100, "interrupted": False, "levels": levels})
    (points, _, _), *_ = (container for container in figure.axes[0].containers)
    assert list(points.get_xdata()) == pytest.approx([0.1, 0.01])
    assert list(points.get_ydata()) == pytest.approx([0.06, 0.005])
    assert figure.axes[0].get_ylim()[1] > 0.1
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.9", "0.99"]


def test_a_calibration_that_is_stopped_counts_finished_kernels_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And starts no further confidence."""
    rounds = [[record(1, 1), record(2, 3), record(3, 2)], [record(1, 0), record(2, 2), record(3, 100, finished=False)]]
    monkeypatch.setattr("safe_psrl_experiments.calibration.run_jobs", lambda *_: rounds.pop(0))
    outcome = run_calibration(Calibration("factored-toy", (0.9, 0.95, 0.98), 3, 100), tmp_path, 1, lambda _: None)
    assert outcome is not None
    assert outcome.summary["interrupted"]
    assert [level["share"] for level in outcome.summary["levels"]] == pytest.approx([0.02, 0.01])
    assert [level["kernels"] for level in outcome.summary["levels"]] == [3, 2]


def test_a_calibration_without_two_finished_kernels_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("safe_psrl_experiments.calibration.run_jobs", lambda *_: [record(1, 0), record(2, 0, finished=False)])
    assert run_calibration(Calibration("factored-toy", (0.9,), 2, 100), tmp_path, 1, lambda _: None) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "environment = 'nowhere'"),
        (("factored-toy", (0.9, 1.5)), "confidence = 1.5"),
        (("factored-toy", ()), "confidences = "),
        (("factored-toy", (0.9,), 1), "kernels = 1: must be at least 2"),
        (("factored-toy", (0.9,), 2, 0), "must be at least 1"),
        (("random:constraints=2", (0.9,), 2, 10), "has several constraints"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Calibration(*arguments)
