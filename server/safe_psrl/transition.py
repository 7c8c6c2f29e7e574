"""One observed step, and whether a problem allows it."""

from typing import NamedTuple

import numpy as np

from safe_psrl.errors import TransitionError
from safe_psrl.problem.checks import MAX_INTEGER
from safe_psrl.problem.spec import CmdpSpec


class Transition(NamedTuple):
    """One observed step. Reward and costs matter only where they are learned."""

    step: int  # from 0; of a continuing task, since its beginning
    state: int
    action: int
    next_state: int
    reward: float = 0.0
    costs: tuple[float, ...] = ()


def check_transition(spec: CmdpSpec, transition: Transition) -> None:
    step, state, action, next_state, reward, costs = transition
    for field, value, bound in (
        ("step", step, MAX_INTEGER if spec.is_continuing else spec.horizon),
        ("state", state, spec.num_states),
        ("action", action, spec.num_actions),
        ("next_state", next_state, spec.num_states),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < bound:
            raise TransitionError(field, value, f"must be a whole number from 0 to {bound - 1}")
    if not spec.available_actions[state, action]:
        raise TransitionError("action", action, f"is not available in state {state}")
    if spec.place_of(step, state, action, next_state) < 0:
        raise TransitionError("next_state", next_state, f"is outside the support of state {state}, action {action}")
    if spec.learns_signals:
        if not isinstance(costs, tuple | list) or len(costs) != spec.num_constraints:
            raise TransitionError("costs", costs, f"must have {spec.num_constraints} entries, one per constraint")
        for field, number in (("reward", reward), *((f"costs[{i}]", c) for i, c in enumerate(costs))):
            is_number = isinstance(number, int | float | np.integer | np.floating) and not isinstance(number, bool)
            if not is_number or not 0 <= number <= 1:
                raise TransitionError(field, number, "must be a number from 0 to 1")
