"""Observations that do not fit the specification are refused, with the field and its value, and change nothing."""

import numpy as np
import pytest

from safe_psrl import Constraint, SafePsrl, Transition, TransitionError
from tests.safe_psrl.cases import random_case, spec_of

GOOD = Transition(0, 0, 0, 0, 0.5, (0.5,))


@pytest.fixture(scope="module")
def learner() -> SafePsrl:
    """Two states, two actions, three steps, learned signals; action 1 is unavailable in 1, and 0 cannot stay by action 1."""
    table = [[0.5, 0.5], [0.5, 0.5]]
    masks = {"available_actions": [[1, 1], [1, 0]], "support": [[[1, 1], [0, 1]], [[1, 1], [1, 1]]]}
    return SafePsrl(spec_of(3, table, Constraint("cost", table, 2.0, 1.0), reward_learned=True, **masks))


@pytest.mark.parametrize("bad", [-1, 5, True, np.True_, 0.0, np.nan, "0", None, 2**70])
@pytest.mark.parametrize("field", ["step", "state", "action", "next_state"])
def test_fields_that_are_no_index(learner: SafePsrl, field: str, bad: object) -> None:
    """Each index is a whole number in its range; True, 0.0 and NaN are none."""
    bound = 2 if field == "step" else 1
    with pytest.raises(
        TransitionError, match=rf"^transition {field} = .*: must be a whole number from 0 to {bound}$"
    ) as caught:
        learner.observe(learner.initial_state(), GOOD._replace(**{field: bad}))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 3}, "transition step = 3: must be a whole number from 0 to 2"),
        ({"state": 1, "action": 1}, "transition action = 1: is not available in state 1"),
        ({"action": 1}, "transition next_state = 0: is outside the support of state 0, action 1"),
        ({"reward": np.nan}, "transition reward = nan: must be a number from 0 to 1"),
        ({"reward": -0.1}, "transition reward = -0.1: must be a number from 0 to 1"),
        ({"reward": np.inf}, "transition reward = inf: must be a number from 0 to 1"),
        ({"reward": "0.5"}, "transition reward = '0.5': must be a number from 0 to 1"),
        ({"reward": None}, "transition reward = None: must be a number from 0 to 1"),
        ({"reward": True}, "transition reward = True: must be a number from 0 to 1"),
        ({"costs": ()}, "transition costs = (): must have 1 entries, one per constraint"),
        ({"costs": (0.1, 0.2)}, "transition costs = (0.1, 0.2): must have 1 entries, one per constraint"),
        ({"costs": None}, "transition costs = None: must have 1 entries, one per constraint"),
        ({"costs": (np.nan,)}, "transition costs[0] = nan: must be a number from 0 to 1"),
        ({"costs": (1.1,)}, "transition costs[0] = 1.1: must be a number from 0 to 1"),
        ({"costs": ("x",)}, "transition costs[0] = 'x': must be a number from 0 to 1"),
    ],
)
def test_messages(learner: SafePsrl, changes: dict, message: str) -> None:
    """One line that names the field and shows the value."""
    with pytest.raises(TransitionError) as caught:
        learner.observe(learner.initial_state(), GOOD._replace(**changes))
    assert str(caught.value) == message


def test_edges_are_accepted(learner: SafePsrl) -> None:
    """The last step, 0 and 1 as reward or cost, and numpy's whole numbers."""
    state = learner.initial_state()
    for good in (
        GOOD._replace(step=2),
        GOOD._replace(reward=0, costs=(1,)),
        GOOD._replace(reward=1.0, costs=(np.float64(0.0),)),
        GOOD._replace(step=np.int64(1), state=np.int32(1), next_state=np.uint8(1)),
    ):
        state = learner.observe(state, good)
    assert len(state.pending) == 4


def test_a_refused_transition_changes_nothing(learner: SafePsrl) -> None:
    """State in, error out: what was pending before is pending still."""
    state = learner.observe(learner.initial_state(), GOOD)
    with pytest.raises(TransitionError):
        learner.observe(state, GOOD._replace(state=7))
    assert state.pending == (GOOD,)


def test_known_signals_need_not_be_reported() -> None:
    """Reward and costs of an observation matter only where they are learned."""
    known = SafePsrl(random_case(0, (2, 1, 2)).spec)
    assert len(known.observe(known.initial_state(), Transition(0, 0, 0, 1)).pending) == 1
