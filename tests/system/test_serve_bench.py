"""`bench serve` at its smallest: what it measures is judged by running it, not here."""

import os
from pathlib import Path

import pytest
from safe_psrl_cli.server_process import ServerProcess

from safe_psrl_experiments.bench.serve import bench_serve
from safe_psrl_experiments.bench.serve_figure import draw_serve


@pytest.mark.slow
def test_every_way_of_the_protocol_is_measured_against_the_echo(tmp_path: Path) -> None:
    server, free = ServerProcess(tmp_path / "server"), os.sched_getaffinity(0)
    try:
        server.start()
        results = {result.name: result for result in bench_serve(server, rounds=1, calls=640)}
    finally:
        server.kill()
    assert {name: result.bar for name, result in results.items() if result.bar} == {
        "sequential Step, median": "<= 1.6",
        "Step, 64 in flight": ">= 0.7",
        "StepStream, 32 agents": ">= 2",
        "ReportEpisode, 16 clients": ">= 5",
        "GetAction, 64 in flight": ">= 0.9",
        "GetAction beside plans of S=500, 99 %": "<= 2",
    }
    assert all(result.ratio > 0 and len(result.times) == 1 for result in results.values())
    assert os.sched_getaffinity(0) == free
    assert draw_serve(tmp_path / "serve.png", list(results.values())).stat().st_size > 10_000
