"""Runs that are stopped or killed and go on: they end with the numbers of a run that was left alone."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.safe_psrl.cases import spec_of

from safe_psrl import Constraint
from safe_psrl.problem.documents import spec_to_document
from safe_psrl_experiments import runs
from safe_psrl_experiments.algorithms import ALGORITHMS
from safe_psrl_experiments.checkpoints import SEAL_BYTES
from safe_psrl_experiments.experiment import Experiment, run_experiment
from safe_psrl_experiments.results import RunRecord, recorded_episodes
from safe_psrl_experiments.runs import Job, Report, run_job

COMMAND = Path(sys.executable).parent / "safe-psrl"
DEADLINE = 240  # seconds
EPISODES = 1_200  # on the factored toy, where DOPE plans from episode 677 on
LAUNCHER = """
from safe_psrl_experiments import runs
runs.SECONDS_PER_CHECKPOINT = 0.0  # also in the processes of the pool, which import this file
if __name__ == "__main__":
    from safe_psrl_cli.main import main
    main()
"""
SEVEN = "safe-psrl,optcmdp,optpess-primaldual,cmdp-psrl,psrl,dope,certified"


def toy(algorithm: str, episodes: int = EPISODES) -> Job:
    return Job("factored-toy", algorithm, 1, episodes)


def run_until(job: Job, directory: Path, episodes: int) -> tuple[RunRecord, list[int]]:
    """Stop as soon as that many episodes are done; also what was reported."""
    reports: list[int] = []
    return run_job(job, reports.append, lambda: sum(reports) >= episodes, directory), reports


def tables_in(directory: Path) -> dict[str, bytes]:
    """Every table of the one checkpoint there: counts, duals, boxes, ledger."""
    (path,) = directory.iterdir()
    return {name: table.tobytes() for name, table in content_of(path).items() if name != "about"}


def about(path: Path) -> dict:
    return json.loads(content_of(path)["about"].tobytes())


def content_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(path.read_bytes()[SEAL_BYTES:]), allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize("algorithm", [name for name, each in ALGORITHMS.items() if each.is_for(continuing=False)])
def test_a_run_that_was_stopped_twice_equals_one_that_was_not(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows, and the same tables to the bit: what was learned, and the ledger. It stops between episodes of rows."""
    job = toy(algorithm)
    assert not {300, 850} & set(recorded_episodes(EPISODES))
    whole, _ = run_until(job, tmp_path / "whole", EPISODES + 1)
    pieces = tmp_path / "pieces"
    monkeypatch.setattr(runs, "SECONDS_PER_PIECE", 0.0)  # it looks after every episode whether it should stop
    first, _ = run_until(job, pieces, 300)
    second, reports = run_until(job, pieces, 850)
    assert reports[0] == first.episodes
    last, reports = run_until(job, pieces, EPISODES + 1)
    assert reports[0] == second.episodes
    assert sum(reports) == EPISODES
    assert (first.episodes, second.episodes) == (300, 850)
    assert (first.finished, second.finished, last.finished) == (False, False, True)
    assert last.rows == whole.rows
    assert tables_in(pieces) == tables_in(tmp_path / "whole")


@pytest.mark.parametrize("algorithm", [name for name, each in ALGORITHMS.items() if each.is_for(continuing=True)])
def test_a_continuing_run_goes_on(algorithm: str, tmp_path: Path) -> None:
    job = Job("continuing-buffer", algorithm, 1, 600)
    whole, _ = run_until(job, tmp_path / "whole", 601)
    run_until(job, tmp_path / "pieces", 250)
    last, reports = run_until(job, tmp_path / "pieces", 601)
    assert reports[0] >= 250
    assert last.rows == whole.rows
    assert tables_in(tmp_path / "pieces") == tables_in(tmp_path / "whole")


def test_several_constraints_go_on_too(tmp_path: Path) -> None:
    """Also where learned by linear programs, episode by episode."""
    job = Job("random:states=3,actions=2,horizon=3,constraints=2,seed=1", "certified", 1, 24)
    whole, _ = run_until(job, tmp_path / "whole", 25)
    run_until(job, tmp_path / "pieces", 10)
    last, reports = run_until(job, tmp_path / "pieces", 25)
    assert reports[0] >= 10
    assert last.rows == whole.rows
    assert tables_in(tmp_path / "pieces") == tables_in(tmp_path / "whole")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    """Its rows and its time come from the checkpoint."""
    first, _ = run_until(toy("psrl"), tmp_path, EPISODES + 1)
    again, reports = run_until(toy("psrl"), tmp_path, EPISODES + 1)
    assert reports == [EPISODES]
    assert (again.rows, again.seconds) == (first.rows, first.seconds)


def test_checkpoints_are_written_along_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only at the end: each time that so many seconds have passed, and in one step, so that no half file is ever there."""
    monkeypatch.setattr(runs, "SECONDS_PER_CHECKPOINT", 0.0)
    seen: list[int] = []

    def look(_: int) -> None:
        seen.extend(about(path)["episode"] for path in tmp_path.iterdir())

    run_job(toy("psrl"), look, lambda: False, tmp_path)
    assert len(set(seen)) > 10
    assert seen == sorted(seen)
    assert [path.suffix for path in tmp_path.iterdir()] == [".checkpoint"]


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda _: b"", lambda _: b"no checkpoint", lambda data: data + b"x"]
)
def test_a_damaged_checkpoint_is_ignored(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """The run begins anew and ends with the right numbers."""
    run_until(toy("psrl"), tmp_path, 300)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    record, reports = run_until(toy("psrl"), tmp_path, EPISODES + 1)
    assert reports[0] == 0
    assert record.rows == run_job(toy("psrl"), lambda _: None, lambda: False).rows


def test_any_damaged_byte_is_survived(tmp_path: Path) -> None:
    """Wherever a byte is changed, the run begins anew."""
    job = toy("psrl", 40)
    whole = run_job(job, lambda _: None, lambda: False).rows
    run_until(job, tmp_path, 20)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    for place in np.random.default_rng(0).integers(len(data), size=100).tolist():
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        record, reports = run_until(job, tmp_path, 41)
        assert (record.rows, reports[0]) == (whole, 0), place


def test_a_checkpoint_of_another_job_is_ignored(tmp_path: Path) -> None:
    """Put in the place of this one's, as if two names had met: it says itself whose it is."""
    run_until(toy("psrl", 2_000), tmp_path, 300)
    (foreign,) = tmp_path.iterdir()
    run_until(toy("psrl"), tmp_path, 300)
    (own,) = set(tmp_path.iterdir()) - {foreign}
    foreign.replace(own)
    record, reports = run_until(toy("psrl"), tmp_path, EPISODES + 1)
    assert reports[0] == 0
    assert record.rows == run_job(toy("psrl"), lambda _: None, lambda: False).rows


def test_a_specification_file_that_was_changed_is_another_job(tmp_path: Path) -> None:
    """The same path and sizes with another reward: nothing of the old problem is taken over."""
    path = tmp_path / "problem.json"
    spec = spec_of(3, [[0.0, 1.0], [0.0, 0.5]], Constraint("cost", [[0, 1], [0, 1]], 2, 0.5))
    document = spec_to_document(spec) | {"transitions": [[[0.5, 0.5], [0.2, 0.8]], [[0.5, 0.5], [0.7, 0.3]]]}
    job = Job(str(path), "safe-psrl", 1, 200)
    for change in ({}, {"reward": [[0.0, 0.1], [0.0, 0.9]]}, {"transitions": [[[0.1, 0.9]] * 2] * 2}):
        path.write_text(json.dumps(document | change), encoding="utf-8")
        reports: list[int] = []
        record = run_job(job, reports.append, lambda: sum(reports) >= 100, tmp_path / "checkpoints")  # noqa: B023
        assert reports[0] == 0
        assert record.rows[-1]["episode"] >= 100


@pytest.mark.slow
def test_an_experiment_with_a_run_that_never_began_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after the first run had ended and before the second began: it says so, and keeps what it needs to go on."""
    plan = Experiment("factored-toy", ["psrl"], 50, 2)

    def first_only(jobs: list[Job], _processes: int, report: Report, checkpoints: Path) -> list[RunRecord]:
        return [run_job(jobs[0], report, lambda: False, checkpoints)]

    with monkeypatch.context() as patch:
        patch.setattr("safe_psrl_experiments.experiment.run_jobs", first_only)
        outcome = run_experiment(plan, tmp_path, 1, lambda _: None)
    assert outcome is not None
    assert outcome.summary["interrupted"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    outcome = run_experiment(plan, tmp_path, 1, lambda _: None)
    assert outcome is not None
    assert (outcome.summary["interrupted"], outcome.summary["seeds"]) == (False, 2)
    assert not (tmp_path / "checkpoints").exists()


def command(program: list[Path | str], directory: Path, algorithms: str, episodes: int) -> subprocess.Popen[str]:
    """The experiment in a group of processes of its own."""
    options = ["--algorithms", algorithms, "--episodes", str(episodes), "--seeds", "1", "--jobs", "2", "--out", str(directory)]
    return subprocess.Popen(
        [*program, "experiment", "streaming-buffer", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "120"},
    )


def finish(directory: Path, algorithms: str, episodes: int) -> bytes:
    """The command as a user types it, to its end; the results that it wrote."""
    process = command([COMMAND], directory, algorithms, episodes)
    shown, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, shown
    assert not (directory / "checkpoints").exists()
    return (directory / "results.csv").read_bytes()


def wait_for_checkpoints(process: subprocess.Popen[str], directory: Path, number: int) -> None:
    for _ in range(DEADLINE * 20):
        if len(list((directory / "checkpoints").glob("*.checkpoint"))) >= number:
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    process.kill()
    raise AssertionError(f"no {number} checkpoints:\n{process.communicate()[0]}")


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send a signal to all processes of the command, as a terminal or a power cut does."""
    os.killpg(process.pid, number)
    return process.communicate(timeout=DEADLINE)[0]


def start_with_checkpoints(tmp_path: Path, algorithms: str, episodes: int, number: int) -> tuple[subprocess.Popen[str], Path]:
    """An experiment that checkpoints all the time, once there are `number` checkpoints, and where it writes."""
    launcher, directory = tmp_path / "launcher.py", tmp_path / "ended"
    launcher.write_text(LAUNCHER, encoding="utf-8")
    process = command([sys.executable, launcher], directory, algorithms, episodes)
    wait_for_checkpoints(process, directory, number)
    return process, directory


@pytest.mark.slow
def test_a_killed_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL at an arbitrary moment, in the midst of several algorithms; the same command then ends with the same results."""
    process, killed = start_with_checkpoints(tmp_path, SEVEN, 14_000, 3)
    end(process, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (killed / "results.csv").exists()
    done = [about(path)["episode"] for path in (killed / "checkpoints").glob("*.checkpoint")]
    assert sum(0 < episode < 14_000 for episode in done) >= 1
    assert finish(killed, SEVEN, 14_000) == finish(tmp_path / "whole", SEVEN, 14_000)


@pytest.mark.slow
def test_ctrl_c_and_the_same_command_again(tmp_path: Path) -> None:
    """The first leaves what was done, and checkpoints; the second the numbers of a run that was not stopped."""
    algorithms = "optcmdp,cmdp-psrl"
    process, stopped = start_with_checkpoints(tmp_path, algorithms, 8_000, 2)
    shown = end(process, signal.SIGINT)
    assert process.returncode == 130, shown
    assert json.loads((stopped / "summary.json").read_text(encoding="utf-8"))["interrupted"]
    assert (stopped / "checkpoints").is_dir()
    assert finish(stopped, algorithms, 8_000) == finish(tmp_path / "whole", algorithms, 8_000)
