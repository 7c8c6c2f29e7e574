"""Policies and posteriors as coloured cells."""

import numpy as np
import pytest

from safe_psrl_console.grids import (
    MOST_CELLS,
    Names,
    compact,
    ink_on,
    policy_grid,
    posterior_grid,
    transitions_in_words,
    visits,
)
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.messages import pack


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("steps", [1, 3])
def test_visits_are_the_counts_summed_over_next_states_and_steps(steps: int, dtype: type) -> None:
    counts = (np.random.default_rng(1).integers(0, 50, (steps, 4, 3, 4)) * (0.5 if dtype is np.float64 else 1)).astype(dtype)
    num_states, num_actions, seen = visits(pack(counts))
    assert (num_states, num_actions) == (4, 3)
    assert seen == counts.sum(axis=(0, -1)).ravel().tolist()


def test_a_posterior_has_actions_down_and_states_across_on_a_logarithmic_scale() -> None:
    grid = posterior_grid(3, 2, [0, 1, 10, 100, 1_000, 0])
    assert (grid.rows, grid.columns) == (2, 3)
    assert grid.texts == ["0", "10", "1.0k", "1", "100", "0"]
    assert grid.says[2] == "state 2, action 0: visited 1,000 times"
    assert grid.colours[0] == grid.colours[5] == "var(--unvisited)"
    assert len(set(grid.colours)) == 5


def test_weights_that_are_no_numbers_of_visits_are_shown_as_weights() -> None:
    grid = posterior_grid(2, 1, [1234.56, 3.25])
    assert grid.says == ["state 0, action 0: visits of weight 1,234.6", "state 1, action 0: visits of weight 3.2"]
    assert grid.texts == ["1.2k", "3.2"]
    assert [words for _, words in grid.legend] == ["never", "weight 1", "weight 1,234.6"]
    assert transitions_in_words([1234.56, 3.25]) == "Transitions of weight 1,237.8"
    assert transitions_in_words([1234.0, 3.0]) == "1,237 transitions"


def test_pairs_with_drift_are_marked() -> None:
    grid = posterior_grid(3, 2, [1] * 6, {(2, 1), (0, 0), (7, 7)})
    assert grid.marked == [0, 5]
    assert grid.says[5] == "state 2, action 1: visited 1 times; drift was detected here"
    assert posterior_grid(3, 2, [1] * 6).marked == []


def test_a_policy_has_states_down_and_steps_across() -> None:
    grid = policy_grid(model_pb2.Policy(horizon=2, num_states=3, actions=[0, 1, 1, 0, 0, 2]))
    assert (grid.rows, grid.columns) == (3, 2)
    assert grid.texts == ["0", "0", "1", "0", "1", "2"]
    assert grid.says[-1] == "step 1, state 2: action 2"
    assert [meaning for _, meaning in grid.legend] == ["action 0", "action 1", "action 2"]
    assert grid.opacities == []


def test_states_and_actions_are_named() -> None:
    names = Names(["congested", "fr\u202eee"], ["wait", "boost"])
    policy = model_pb2.Policy(horizon=1, num_states=2, actions=[1, 0])
    policy.mixture.add(share=1.0, actions=[1, 0])
    grid = policy_grid(policy, names)
    assert grid.says[0] == "step 0, state 0 (congested): action 1 (boost), of 1 (100%)"
    assert "\u202e" not in grid.says[1]
    assert [meaning for _, meaning in grid.legend] == ["action 0 (wait)", "action 1 (boost)"]
    assert posterior_grid(2, 2, [1] * 4, names=names).says[0] == "state 0 (congested), action 0 (wait): visited 1 times"


def test_a_mixture_shows_the_probabilities_of_its_actions() -> None:
    policy = model_pb2.Policy(horizon=1, num_states=2, actions=[1, 0])
    policy.mixture.add(share=0.75, actions=[1, 0])
    policy.mixture.add(share=0.25, actions=[0, 0])
    grid = policy_grid(policy)
    assert grid.says == ["step 0, state 0: action 1, of 0 (25%), 1 (75%)", "step 0, state 1: action 0, of 0 (100%)"]
    assert grid.opacities[0] < grid.opacities[1] == 1


def test_a_policy_of_a_continuing_task_shows_probabilities_by_state_and_action() -> None:
    policy = model_pb2.Policy(num_states=2, probabilities=[1.0, 0.0, 0.25, 0.75])
    grid = policy_grid(policy, Names(["low", "high"], ["wait", "pump"]))
    assert (grid.rows, grid.columns, grid.y, grid.x) == (2, 2, "state", "action")
    assert grid.texts == ["100", "", "25", "75"]
    assert grid.says[3] == "state 1 (high): action 1 (pump) with 75.0%"
    assert grid.opacities == [1.0, 0.0, pytest.approx(0.4375), pytest.approx(0.8125)]
    assert policy_grid(model_pb2.Policy(num_states=500, probabilities=[0.1] * 5_000)).cut.startswith("Shown: the first 400")


def test_a_grid_that_is_too_large_is_cut_with_a_note() -> None:
    grid = policy_grid(model_pb2.Policy(horizon=50, num_states=500, actions=[0] * 25_000))
    assert len(grid.colours) <= MOST_CELLS
    assert grid.cut == "Shown: the first 80 of 500 states."
    assert posterior_grid(5_000, 4, [1] * 20_000).cut == "Shown: the first 1,000 of 5,000 states."


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (0.44, "0.4"),
        (9.0, "9"),
        (12.7, "13"),
        (999, "999"),
        (999.7, "1.0k"),
        (1_234, "1.2k"),
        (56_789.5, "56k"),
        (3_400_000, "3.4M"),
    ],
)
def test_counts_are_short(count: float, text: str) -> None:
    assert compact(count) == text


@pytest.mark.parametrize(("colour", "ink"), [("#ffffff", "#000000"), ("#00224e", "#ffffff"), ("#e69f00", "#000000")])
def test_the_text_colour_is_the_more_legible_one(colour: str, ink: str) -> None:
    assert ink_on(colour) == ink
