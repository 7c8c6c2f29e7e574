"""What the commands do when they are used well."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_experiments.results import RunRecord, recorded_episodes
from safe_psrl_experiments.runs import Job, run_job


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments whose processes are not what is tested do without them."""

    def run_jobs(jobs: list[Job], _processes: int, report: Callable[[int], None], _checkpoints: Path) -> list[RunRecord]:
        return [run_job(job, report, lambda: False) for job in jobs]

    monkeypatch.setattr("safe_psrl_experiments.experiment.run_jobs", run_jobs)
    monkeypatch.setattr("safe_psrl_experiments.calibration.run_jobs", run_jobs)


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy", "random:states=3,constraints=2"])
@pytest.mark.parametrize("kind", ["toml", "json"])
def test_a_specification_that_is_shown_can_be_read_again(
    safe_psrl: Callable[..., Any], tmp_path: Path, name: str, kind: str
) -> None:
    options = ["--transitions", *(["--json"] if kind == "json" else [])]
    shown = safe_psrl("spec", "show", name, *options)
    assert (shown.code, shown.err) == (0, "")
    path = tmp_path / f"mine.{kind}"
    path.write_text(shown.out, encoding="utf-8")
    assert safe_psrl("spec", "show", str(path), *options).out == shown.out
    findings, again = (json.loads(safe_psrl("spec", "check", what, "--json").out) for what in (name, str(path)))
    for measured in (findings, again):
        measured.pop("plan_seconds")
    assert again == findings | {"name": "mine"}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_row_of_a_table_is_one_line(safe_psrl: Callable[..., Any], options: tuple[str, ...]) -> None:
    lines = [line.strip() for line in safe_psrl("spec", "show", "factored-toy", *options).out.splitlines()]
    assert "[0.0, 0.6666666666666666]," in lines
    assert len(lines) < 35


def test_without_transitions_the_kernel_is_not_shown(safe_psrl: Callable[..., Any]) -> None:
    document = json.loads(safe_psrl("spec", "show", "inventory", "--json").out)
    assert "transitions" not in document
    assert document["num_states"] == 6


@pytest.mark.slow
def test_an_experiment_prints_its_table_and_files_within_80_columns(
    installed_safe_psrl: Callable[..., Any], tmp_path: Path
) -> None:
    ended = installed_safe_psrl("experiment", "factored-toy", "--episodes", "300", "--seeds", "2", "--jobs", "1")
    assert ended.code == 0, ended.err
    assert "factored-toy: 300 episodes, 2 seeds" in ended.out
    assert re.search(r"constraint +its +strong +over", ended.out)
    assert "Exact optimum: reward 2.000000 at cost 3.000000." in ended.out
    assert max(len(line) for line in (ended.out + ended.err).splitlines()) <= 80
    assert "600/600 episodes" in ended.err
    for name in ("results.csv", "summary.json", "cumulative_regret.png", "average_regret.png"):
        assert f"wrote results/{name}" in ended.out
        assert (tmp_path / "results" / name).stat().st_size > 0


@pytest.mark.usefixtures("in_this_process")
def test_an_experiment_with_json_prints_the_summary_and_nothing_else(safe_psrl: Callable[..., Any], tmp_path: Path) -> None:
    ended = safe_psrl(
        *("experiment", "random:states=3,constraints=2", "--episodes", "50", "--seeds", "1", "--jobs", "1", "--json"),
        *("--out", str(tmp_path), "--set", "safe-psrl.pessimism_coefficient=theorem", "--set", "safe-psrl.cap_pessimism=true"),
    )
    assert ended.code == 0
    assert json.loads(ended.out) == json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("in_this_process")
def test_settings_reach_the_algorithm(safe_psrl: Callable[..., Any], tmp_path: Path) -> None:
    """With the theorem's coefficient and no cap the pessimism is a hundred times the published one's."""
    last = {}
    for coefficient in ("theorem", "published"):
        directory = tmp_path / coefficient
        setting = f"safe-psrl.pessimism_coefficient={coefficient}"
        safe_psrl("experiment", "factored-toy", "--episodes", "20", "--seeds", "1", "--out", str(directory), "--set", setting)
        rows = (directory / "results.csv").read_text(encoding="utf-8").splitlines()
        assert len(rows) == 1 + len(recorded_episodes(20))
        last[coefficient] = float(rows[-1].rpartition(",")[2])
    assert last["theorem"] == pytest.approx(100 * last["published"])


@pytest.mark.usefixtures("in_this_process")
def test_several_constraints_are_shown_below_each_other(safe_psrl: Callable[..., Any], tmp_path: Path) -> None:
    out = safe_psrl("experiment", "random:constraints=2", "--episodes", "50", "--seeds", "1", "--out", str(tmp_path)).out
    for name in ("safe-psrl", "cost-1", "cost-2"):
        assert name in out


CALIBRATION = ("calibrate", "factored-toy", "--confidences", "0.9,0.99", "--kernels", "2", "--episodes", "20")


@pytest.mark.usefixtures("in_this_process")
def test_a_calibration_prints_its_table_and_files(safe_psrl: Callable[..., Any], tmp_path: Path) -> None:
    ended = safe_psrl(*CALIBRATION, "--out", str(tmp_path))
    assert ended.code == 0
    assert "factored-toy: 2 kernels drawn from the prior, 20 episodes of each" in ended.out
    assert "10.00%" in ended.out
    for name in ("calibration.json", "calibration.md", "calibration.png"):
        assert f"wrote {tmp_path}/{name}" in ended.out


@pytest.mark.usefixtures("in_this_process")
def test_a_calibration_with_json_prints_its_result_and_nothing_else(safe_psrl: Callable[..., Any], tmp_path: Path) -> None:
    ended = safe_psrl(*CALIBRATION, "--out", str(tmp_path), "--json")
    assert json.loads(ended.out) == json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))


def test_a_calibration_that_is_stopped_says_so(
    safe_psrl: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safe_psrl_experiments.calibration.run_jobs", lambda *_: [])
    assert safe_psrl(*CALIBRATION, "--out", str(tmp_path)).code == 130
