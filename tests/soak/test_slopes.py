"""What the soak's arithmetic sees, and what it does not take for growth."""

from typing import Any

import numpy as np
import pytest

from tests.soak.sampling import Sample
from tests.soak.slopes import slope
from tests.soak.soak import Flat, Plan, Side, complaints

HOUR = 3600.0
SECONDS = np.arange(HOUR)
PLAN = Plan(minutes=60)


def noise(scale: float, seed: int = 0) -> Any:
    """Of neighbours that are alike, as those of a process are."""
    steps = np.random.default_rng(seed).normal(0, scale, len(SECONDS))
    return np.convolve(steps, np.ones(20) / 20, "same") * 4


@pytest.mark.parametrize("growth", [0.0, 3.0, 50.0])
def test_a_slope_is_found_under_noise(growth: float) -> None:
    found = slope([(SECONDS, 260 + growth * SECONDS / HOUR + noise(0.5))])
    assert found.low <= growth <= found.high
    assert found.per_hour == pytest.approx(growth, abs=1.0)
    assert found.level == pytest.approx(260 + growth / 2, abs=1.0)


def test_spikes_are_no_slope() -> None:
    values = 2.0 + noise(0.01)
    values[3000::100] += 500
    assert slope([(SECONDS, values)]).per_hour == pytest.approx(0.0, abs=0.1)


def test_a_process_that_begins_anew_is_compared_with_itself_only() -> None:
    """Each life grows by 10 an hour from where it began; the later ones begin lower and lower."""
    lives = [
        (SECONDS[start : start + 300], 260 - start / 60 + 10 * SECONDS[:300] / HOUR + noise(0.01)[:300])
        for start in range(0, 3600, 300)
    ]
    assert slope(lives).per_hour == pytest.approx(10.0, abs=1.0)


class Samples:
    """What a sampler has seen in an hour of a server that grows by `growth`."""

    def __init__(self, **growth: float) -> None:
        levels = {"memory": 260.0, "descriptors": 29.0, "threads": 14.0, "p50": 2.4, "p99": 10.0, "database": 1.0, "log": 4.1}
        levels["machine"] = 0.5
        noises = {"memory": 0.3, "p50": 0.3, "p99": 5.0}
        columns = {
            name: level + growth.get(name, 0.0) * SECONDS / HOUR + noise(noises.get(name, 0.0), len(name))
            for name, level in levels.items()
        }
        rows = zip(*columns.values(), strict=True)
        self.samples = [
            Sample(seconds=second, life=1, calls=100.0, **dict(zip(columns, row, strict=True)))
            for second, row in zip(SECONDS, rows, strict=True)
        ]

    def lives(self, quantity: str, after: float) -> Any:
        late = [sample for sample in self.samples if sample.seconds >= after]
        return [(np.array([s.seconds for s in late]), np.array([getattr(s, quantity) for s in late]))]


def complaints_about(**growth: float) -> list[str]:
    sides: list[Any] = [Side(name, None, Samples(**growth), None) for name in ("steady", "killed")]  # type: ignore[arg-type]
    return [line.split()[0] for line in complaints(sides, PLAN, Flat())]


def test_an_hour_that_is_flat_is_taken_for_flat() -> None:
    assert complaints_about() == []
    assert complaints_about(memory=1.0, p50=0.1) == []


@pytest.mark.parametrize(
    ("quantity", "growth"),
    [("memory", 8.0), ("descriptors", 2.0), ("threads", 2.0), ("p50", 2.0), ("p99", 15.0), ("database", 10.0), ("log", 10.0)],
)
def test_an_hour_that_is_not_is_not(quantity: str, growth: float) -> None:
    assert complaints_about(**{quantity: growth}) == [quantity]


def test_latency_that_grows_as_the_machine_grows_busy_is_the_machines() -> None:
    assert complaints_about(p50=2.0, p99=10.0, machine=0.5) == []


def test_files_of_a_killed_server_must_not_pile_up() -> None:
    sides: list[Any] = [Side("steady", None, Samples(), None), Side("killed", None, Samples(database=12.0), None)]  # type: ignore[arg-type]
    assert complaints(sides, PLAN, Flat()) != []
