"""`bench serve` at its smallest: what it measures is judged by running it, not here."""

import os
from pathlib import Path

import pytest

from safe_psrl_cli.child_process import ServerProcess
from safe_psrl_experiments.bench.figures import draw_serve
from safe_psrl_experiments.bench.serve import Setting, bench_serve

BARS = {
    "Step, sequential": "<= 2.4",
    "Step, 64 in flight": ">= 0.6",
    "Step, 64 concurrent": ">= 0.6",
    "StepStream in batches, 32 agents": ">= 1.8",
    "ReportEpisode, 16 clients": ">= 4",
    "GetAction, 64 in flight": ">= 0.85",
    "GetAction beside plans of S=500, p99": "<= 3",
}
BARS_BESIDE = {"Step, sequential": "<= 3", "Step, 64 in flight": ">= 0.5"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "bars"), [(Setting(1, pin=True, calls=640), BARS), (Setting(1, beside=1, calls=640), BARS_BESIDE)]
)
def test_every_call_is_measured_against_the_echo(setting: Setting, bars: dict[str, str], tmp_path: Path) -> None:
    server, free = ServerProcess(tmp_path / "server"), os.sched_getaffinity(0)
    reports = list[tuple[int, int | None]]()
    try:
        server.start()
        results = bench_serve(server, setting, lambda _what, done=0, total=None: reports.append((done, total)))
    finally:
        server.kill()
    assert {result.name: result.bar for result in results} == bars
    assert all(result.ratio > 0 and len(result.times) == 1 for result in results)
    assert reports == [(number, 2 * len(bars)) for number in range(2 * len(bars) + 1)]
    assert os.sched_getaffinity(0) == free
    assert draw_serve(tmp_path / "serve.png", results).stat().st_size > 10_000
