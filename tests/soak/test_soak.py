"""Hours of everything at once take no more memory, files or time than minutes do, and lose nothing."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.soak.figure import draw
from tests.soak.soak import Flat, Plan, complaints, run, table, totals
from tests.system.server_process import ServerProcess, show

MINUTES: Final = float(os.environ.get("SOAK_MINUTES", "0"))
FIGURE: Final = Path(os.environ.get("SOAK_FIGURE", "soak.png"))
RESIDENT: Final = int(os.environ.get("SOAK_RESIDENT", "0"))
SHORT: Final = Plan(minutes=0.7, kill_seconds=(8.0, 14.0), warm_up=15.0, resident=4)
SHORTER: Final = Plan(minutes=0.4, kill_seconds=(60.0, 60.0), warm_up=8.0)
# A minute says little: an interpreter that has just started grows, and what others do on the machine is all that latency shows.
# SQLite's own log grows to 4 MB before it is begun anew, which may be within the few seconds that count.
SHORT_FLAT: Final = Flat(memory=300.0, descriptors=60.0, threads=60.0, latency=math.inf, files=300.0, logs=1000.0)
LEAKY: Final = (sys.executable, str(Path(__file__).parent / "leaky_server.py"))
NewServer = Callable[..., ServerProcess]


@pytest.mark.slow
def test_a_short_soak_is_flat_and_exact(new_server: NewServer, tmp_path: Path) -> None:
    sides = run(new_server, SHORT, tmp_path)
    show("\n".join([table(sides, SHORT), *totals(sides)]))
    draw(sides, SHORT, tmp_path / "soak.png")
    assert complaints(sides, SHORT, SHORT_FLAT) == []
    assert len(sides[1].sampler.kills) >= 2


@pytest.mark.slow
def test_a_leaking_server_is_detected(new_server: NewServer, tmp_path: Path) -> None:
    def new_leaky_server(**settings: Any) -> ServerProcess:
        return new_server(command=LEAKY, **settings)

    sides = run(new_leaky_server, SHORTER, tmp_path)
    found = complaints(sides, SHORTER, SHORT_FLAT)
    show("\n".join(found))
    assert {line.split()[0] for line in found} == {"memory", "descriptors"}


@pytest.mark.skipif(not MINUTES, reason="takes an hour: make test-soak")
@pytest.mark.timeout(MINUTES * 60 + 1200)
def test_an_hour_of_everything_is_flat_and_exact(new_server: NewServer, tmp_path: Path) -> None:
    steps, warm_up = float(os.environ.get("SOAK_STEPS", "100")), min(600.0, MINUTES * 15)
    plan = Plan(minutes=MINUTES, steps=steps, warm_up=warm_up, resident=RESIDENT)
    sides = run(new_server, plan, tmp_path, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    show("\n".join([table(sides, plan), *totals(sides)]))
    draw(sides, plan, FIGURE)
    assert complaints(sides, plan, Flat()) == []
