"""Experiments on a real Dask cluster of two processes on this machine."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import LocalCluster

from safe_psrl import SpecError
from safe_psrl_experiments import runs
from safe_psrl_experiments.experiment import Experiment, run_experiment

ALGORITHMS = ["safe-psrl", "certified", "optcmdp"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a cluster with two workers."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None, silence_logs=40
    ) as started:
        yield started.scheduler_address


def test_a_cluster_gives_the_same_numbers_as_processes(scheduler: str, tmp_path: Path) -> None:
    """To the byte, with every run's end reported and no checkpoint left."""
    plan, reports = Experiment("factored-toy", ALGORITHMS, 400, 2), list[int]()
    there = run_experiment(plan, tmp_path / "cluster", 1, reports.append, scheduler)
    here = run_experiment(plan, tmp_path / "processes", 2, lambda _: None)
    assert there is not None
    assert here is not None
    results = [(tmp_path / name / "results.csv").read_bytes() for name in ("cluster", "processes")]
    assert results[0] == results[1]
    assert sorted(reports) == [400] * 6
    assert not there.summary["interrupted"]
    files = {path.name for path in (tmp_path / "cluster").iterdir()}
    assert files == {"average_regret.png", "comparison.md", "cumulative_regret.png", "results.csv", "summary.json"}


def test_a_cluster_can_be_used_again(scheduler: str, tmp_path: Path) -> None:
    """A second experiment on it: nothing of the first is taken for its own."""
    for episodes in (60, 90):
        outcome = run_experiment(Experiment("factored-toy", ["psrl"], episodes, 2), tmp_path, 1, lambda _: None, scheduler)
        assert outcome is not None
        assert outcome.summary["episodes"] == episodes


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{closed}", "nonsense://x", "127.0.0.1:notaport", ""])
def test_a_scheduler_that_cannot_be_reached_is_one_line(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is closed, or an address that is none; and no files."""
    monkeypatch.setattr(runs, "CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address.format(closed=server.getsockname()[1])
    with pytest.raises(SpecError, match=rf"^scheduler = {address!r}: .+$") as caught:
        run_experiment(Experiment("factored-toy", ["psrl"], 10, 1), tmp_path, 1, lambda _: None, address)
    assert "tcp" not in address or "cannot be reached: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
