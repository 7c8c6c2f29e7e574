"""What can go wrong, as one tree.

SafePsrlError
├── SpecError         an invalid specification or option; names the field, its place and the value
├── TransitionError   an observation that the specification rules out
├── InfeasibleError   no policy satisfies the budget; has the least achievable cost
└── PlanStoppedError  another thread stopped the plan
"""

import numpy as np
from numpy.typing import NDArray


class SafePsrlError(ValueError):
    """Base of this library's errors."""


class SpecError(SafePsrlError):
    """`field` (with its place, such as `reward[3][1]`) has a `value` that its contract does not allow."""

    def __init__(self, field: str, value: object, requirement: str) -> None:
        super().__init__(f"{field} = {shown(value)}: {requirement}")
        self.field = field
        self.value = value
        self.requirement = requirement


class TransitionError(SafePsrlError):
    """An observed transition is impossible under the specification."""

    def __init__(self, field: str, value: object, requirement: str) -> None:
        super().__init__(f"transition {field} = {shown(value)}: {requirement}")
        self.field = field
        self.value = value


class PlanStoppedError(SafePsrlError):
    """The plan was stopped before it was complete."""


class InfeasibleError(SafePsrlError):
    """The budgets cannot be kept. `least_costs` has, per constraint, the least cost that any policy reaches on its own."""

    def __init__(self, budgets: NDArray[np.float64], least_costs: NDArray[np.float64], least_excess: float) -> None:
        super().__init__(
            f"no policy keeps the cost budget {shown(budgets)}: the least achievable cost is {shown(least_costs)}"
            + (f", and together they are exceeded by {least_excess:.6g} at least" if len(budgets) > 1 else "")
        )
        self.budgets = budgets
        self.least_costs = least_costs
        self.least_excess = least_excess


def shown(value: object) -> str:
    """`value` for a message of one line."""
    if isinstance(value, np.ndarray):
        return shown(value.item()) if value.size == 1 else "[" + ", ".join(shown(v) for v in value.ravel()[:8]) + "]"
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, np.generic):
        value = value.item()
    try:
        text = repr(value)
    except ValueError:  # Python does not write out whole numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
