"""From numbers on scales to states."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safe_psrl import SpecError
from safe_psrl_testbed.quantiser import Quantiser

EDGES = st.lists(st.integers(-1000, 1000), min_size=2, max_size=6, unique=True).map(sorted)
ROWS = st.lists(EDGES, min_size=1, max_size=3)
ANYWHERE = st.floats(-2000, 2000)


@given(rows=ROWS, data=st.data())
def test_a_number_goes_to_the_bin_between_whose_edges_it_lies(rows: list[list[int]], data: st.DataObject) -> None:
    quantiser = Quantiser(rows, outside="refuse")
    observation = [data.draw(st.floats(row[0], row[-1]) | st.sampled_from(row)) for row in rows]
    state = quantiser(observation)
    assert 0 <= state < quantiser.num_states
    for row, place, number in zip(rows, np.unravel_index(state, quantiser.bins), observation, strict=True):
        assert row[place] <= number
        assert number < row[place + 1] or (number == row[-1] and place == len(row) - 2)


@given(rows=ROWS)
def test_every_state_is_reached_once_in_order(rows: list[list[int]]) -> None:
    quantiser = Quantiser(rows)
    middles = [[(a + b) / 2 for a, b in itertools.pairwise(row)] for row in rows]
    assert [quantiser(point) for point in itertools.product(*middles)] == list(range(quantiser.num_states))


@given(rows=ROWS, data=st.data())
def test_outside_values_are_clipped_to_the_nearest_bin(rows: list[list[int]], data: st.DataObject) -> None:
    observation = [data.draw(ANYWHERE) for _ in rows]
    nearest = [min(max(number, row[0]), row[-1]) for number, row in zip(observation, rows, strict=True)]
    assert Quantiser(rows)(observation) == Quantiser(rows, outside="refuse")(nearest)


@pytest.mark.parametrize("number", [-0.1, 2.1, float("inf")])
def test_outside_values_may_be_refused_with_an_actionable_message(number: float) -> None:
    with pytest.raises(SpecError, match=r"^observation\[1\] = .*: is outside 0 to 2; widen the edges, or clip$"):
        Quantiser([[0, 1], [0, 1, 2]], outside="refuse")([0.5, number])


@pytest.mark.parametrize("outside", ["clip", "refuse"])
def test_nan_is_always_refused(outside: str) -> None:
    with pytest.raises(SpecError, match=r"^observation\[0\] = nan: is not a number$"):
        Quantiser([[0, 1]], outside=outside)(float("nan"))


def test_even_bins() -> None:
    quantiser = Quantiser.even(low=[0, -1], high=[10, 1], bins=[5, 2])
    assert (quantiser.bins, quantiser.num_states) == ((5, 2), 10)
    assert [quantiser(x) for x in ([0, -1], [1.9, 0], [2, -0.1], [10, 1])] == [0, 1, 2, 9]


def test_features_pick_the_numbers() -> None:
    quantiser = Quantiser([[0, 1, 2]], features=lambda observation: observation["level"])
    assert quantiser({"level": 1.5, "noise": 7}) == 1


@pytest.mark.parametrize("observation", [[0.5], [0.5, 0.5, 0.5], [[0.5, 0.5]]])
def test_another_number_of_dimensions_is_refused(observation: Sequence[float]) -> None:
    with pytest.raises(SpecError, match="must give 2 numbers, one per row of edges"):
        Quantiser([[0, 1], [0, 1]])(observation)


@pytest.mark.parametrize("row", [[], [1], [1, 1], [2, 1], [0, float("inf")], [0, float("nan")], [[0, 1], [2, 3]]])
def test_invalid_edges_are_refused(row: object) -> None:
    with pytest.raises(SpecError, match=r"^edges\[1\] = .*: must be two or more finite numbers, each above the one before$"):
        Quantiser([[0, 1], row])


def test_other_invalid_settings_are_refused() -> None:
    with pytest.raises(SpecError, match="outside = 'wrap'"):
        Quantiser([[0, 1]], outside="wrap")
    with pytest.raises(SpecError, match="a row for each dimension"):
        Quantiser([])
    with pytest.raises(SpecError, match="at least one bin"):
        Quantiser.even([0], [1], [0])
