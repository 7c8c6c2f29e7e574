"""A constraint of a problem, and what holds for its limits."""

from dataclasses import dataclass

from numpy.typing import ArrayLike

from safe_psrl.errors import SpecError
from safe_psrl.problem.checks import checked_name, checked_number

MIN_SLACK = 1e-9  # tau - c0: bounds divide by its square


@dataclass(frozen=True)
class Constraint:
    """Expected cost per episode at most `cost_budget` (tau); some policy is known to reach `satisfiable_cost` (c0).

    Both are averages per step in a continuing task.

    `cost` is [S, A] or [H, S, A], within [0, 1]. Entries that are NaN (or None) are unknown: the mean of the observed costs
    takes their place (paper, footnote 1), 0 until a pair is first visited. With `learned`, all are, and `cost` is the guess
    until then. The method `certified` does not use guesses of costs: it counts what was never observed as 1.
    """

    name: str
    cost: ArrayLike
    cost_budget: float
    satisfiable_cost: float
    learned: bool = False


def checked_constraint_names(constraints: tuple[Constraint, ...] | list[Constraint]) -> tuple[str, ...]:
    if not isinstance(constraints, tuple | list) or not all(isinstance(c, Constraint) for c in constraints):
        raise SpecError("constraints", constraints, "must be a list of constraints")
    if not constraints:
        raise SpecError("constraints", [], "must have at least one constraint")
    names: list[str] = []
    for i, constraint in enumerate(constraints):
        name = checked_name(f"constraints[{i}].name", constraint.name)
        if name in names:
            raise SpecError(f"constraints[{i}].name", name, "must differ from the other constraints' names")
        names.append(name)
    return tuple(names)


def checked_limits(field: str, constraint: Constraint, horizon: int) -> tuple[float, float]:
    """tau and c0 of an episode of `horizon` steps; per step if it is 0."""
    tau = checked_number(f"{field}.cost_budget", constraint.cost_budget)
    c0 = checked_number(f"{field}.satisfiable_cost", constraint.satisfiable_cost)
    if not 0 < tau <= (horizon or 1):
        most = f"the horizon, {horizon}" if horizon else "1, an average per step"
        raise SpecError(f"{field}.cost_budget", tau, f"must be above 0 and at most {most}")
    if not 0 <= c0 < tau:
        raise SpecError(f"{field}.satisfiable_cost", c0, f"must be at least 0 and below the budget, {tau:g}")
    if tau - c0 < MIN_SLACK:
        raise SpecError(f"{field}.cost_budget", tau, f"must exceed satisfiable_cost by at least {MIN_SLACK:g}")
    return tau, c0
