"""Many cells: capacity is never exceeded and never left over, devices are never lost, a seed is a world."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from safe_psrl_testbed.base_stations.simulation import rule_players
from safe_psrl_testbed.base_stations.world import (
    FAST_RATE,
    SLOW_RATE,
    BaseStations,
    RandomWaypoints,
    WorldSettings,
    proportional_shares,
)
from safe_psrl_testbed.media import RULES, MediaHistory
from safe_psrl_testbed.media_players import FixedRule

TOLERANCE = 1e-9


@st.composite
def demands(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], int]:
    """Weights, needs and cells of some devices, and the number of cells."""
    devices, cells = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    each = {"min_size": devices, "max_size": devices}
    weights = draw(st.lists(st.floats(0.1, 10), **each))
    needs = draw(st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 5)), **each))
    where = draw(st.lists(st.integers(0, cells - 1), **each))
    return np.array(weights), np.array(needs), np.array(where, np.int64), cells


@given(demands())
def test_shares_never_exceed_a_cell_or_a_need_and_waste_nothing(
    asked: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], int],
) -> None:
    weights, needs, where, cells = asked
    shares = proportional_shares(weights, needs, where, cells)
    assert (shares >= 0).all()
    assert (shares <= needs + TOLERANCE).all()
    for cell in range(cells):
        mine = where == cell
        assert shares[mine].sum() <= 1 + TOLERANCE
        assert shares[mine].sum() == pytest.approx(min(1.0, needs[mine].sum()), abs=1e-6)  # given out as long as it is needed
        short = mine & (shares < needs - TOLERANCE)
        levels = shares[short] / weights[short]
        assert np.allclose(levels, levels[:1])  # whoever wants more has its part, by weight
        if short.any():
            assert (shares[mine] / weights[mine] <= levels[0] + 1e-6).all()  # and nobody has a greater one


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 40), st.floats(0, 1))
def test_devices_are_conserved_and_no_cell_is_overbooked(seed: int, cells: int, devices: int, share: float) -> None:
    world = BaseStations(WorldSettings(cells, devices, seed))
    choice = np.random.default_rng(seed)
    for _ in range(10):
        before = world.cells
        fast = choice.random(devices) < share
        received = world.advance(fast)
        assert np.bincount(world.cells, minlength=cells).sum() == devices
        assert world.cells.min() >= 0
        assert world.cells.max() < cells
        assert (np.bincount(world.cells, world.shares, cells) <= 1 + TOLERANCE).all()
        assert (received <= np.where(fast, FAST_RATE, SLOW_RATE) + TOLERANCE).all()
        assert world.handovers >= (world.cells != before).sum()


def test_a_device_is_handed_over_to_a_stronger_cell_and_not_to_and_fro() -> None:
    world = BaseStations(WorldSettings(cells=9, devices=90, seed=4))
    moved = []
    for _ in range(60):
        before = world.cells
        world.advance(np.zeros(90, np.bool_))
        moved.append(world.cells != before)
        distances = np.linalg.norm(world.positions[:, None] - world.stations[None], axis=2)
        mine = distances[np.arange(90), world.cells]
        assert (mine[moved[-1]] == distances.min(axis=1)[moved[-1]]).all()
    by_class = np.sum(moved, axis=0)
    assert by_class[world.classes == 0].sum() == 0  # cameras stand
    assert by_class[world.classes == 2].sum() > by_class[world.classes == 1].sum() > 0  # vehicles more often than pedestrians
    assert by_class.max() < 10


def test_devices_stay_within_the_map_and_keep_their_speed() -> None:
    sides, speeds = np.array([100.0, 50.0]), np.linspace(0, 20, 30)
    mobility = RandomWaypoints(np.random.default_rng(1), sides, speeds)
    for _ in range(200):
        before = mobility.positions
        mobility.advance(1.0)
        assert ((mobility.positions >= 0) & (mobility.positions <= sides)).all()
        assert (np.linalg.norm(mobility.positions - before, axis=1) <= speeds + TOLERANCE).all()


def test_the_same_seed_gives_the_same_world() -> None:
    def received(seed: int) -> NDArray[np.float64]:
        world = BaseStations(WorldSettings(4, 30, seed))
        return np.array([world.advance(np.arange(30) % 2 == 0) for _ in range(5)])

    assert (received(7) == received(7)).all()
    assert (received(7) != received(8)).any()


def test_the_fast_service_prevents_stalls_at_the_expected_costs() -> None:
    summaries = {}
    for name, rule in RULES.items():
        history = MediaHistory(60)
        rule_players(WorldSettings(6, 60, 2)).play(FixedRule(rule), history, 6)
        summaries[name] = history.summary()
    assert [summaries[name]["cost"] for name in ("always-slow", "always-fast", "fast-at-first")] == [0.0, 10.0, 5.0]
    stalls = [summaries[name]["stalls"] for name in ("always-fast", "fast-at-first", "always-slow")]
    assert stalls[0] < stalls[1] - 0.5 < stalls[2] - 1.0
