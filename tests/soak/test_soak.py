"""Hours of everything at once take no more memory, files or time than minutes do, and lose nothing."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from figure import draw
from server_process import ServerProcess, show
from slopes import slope
from soak import Flat, Plan, complaints, run, table, totals

MINUTES: Final = float(os.environ.get("SOAK_MINUTES", "0"))
FIGURE: Final = Path(os.environ.get("SOAK_FIGURE", "soak.png"))
SHORT: Final = Plan(minutes=1.0, kill_seconds=(10.0, 25.0), warm_up=20.0)
# A minute says little: an interpreter that has just started is still growing.
SHORT_FLAT: Final = Flat(memory=60.0, descriptors=60.0, threads=60.0, latency=20.0, files=60.0)
LEAKY: Final = (sys.executable, str(Path(__file__).parent / "leaky_server.py"))
NewServer = Callable[..., ServerProcess]


@pytest.mark.slow
def test_a_minute_of_everything_is_flat_and_exact(new_server: NewServer, tmp_path: Path) -> None:
    sides = run(new_server, SHORT, tmp_path)
    show("\n".join([table(sides, SHORT), *totals(sides)]))
    draw(sides, SHORT, tmp_path / "soak.png")
    assert complaints(sides, SHORT, SHORT_FLAT) == []
    assert len(sides[1].sampler.kills) >= 2


@pytest.mark.skipif(not MINUTES, reason="long: make test-soak")
@pytest.mark.timeout(MINUTES * 60 + 1200)
def test_soak(new_server: NewServer, tmp_path: Path) -> None:
    plan = Plan(minutes=MINUTES, steps=float(os.environ.get("SOAK_STEPS", "100")), warm_up=min(300.0, MINUTES * 15))
    sides = run(new_server, plan, tmp_path, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    show("\n".join([table(sides, plan), *totals(sides)]))
    draw(sides, plan, FIGURE)
    assert complaints(sides, plan, Flat()) == []
