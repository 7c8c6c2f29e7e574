"""The constrained MDP as a linear program over occupancies (paper, section 3.3; Altman 1999), solved by HiGHS.

Variables are the occupancies d_h(s, a) of the available actions. Flow is conserved: what leaves a state at step h is what
entered it. Used for several constraints, and to check the multiplier search.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from safe_psrl.arrays import Floats
from safe_psrl.errors import InfeasibleError
from safe_psrl.problem.spec import CmdpSpec

SOLVED, INFEASIBLE = 0, 2  # scipy's statuses
METHODS = ("highs", "highs-ipm")  # the simplex gives up on some infeasible problems of sampled kernels; interior points do not


def optimal_occupancy(spec: CmdpSpec, p: Floats, budgets: Floats) -> Floats:
    """[H, S, A]: the occupancy of greatest reward whose costs keep `budgets`. Raises `InfeasibleError`."""
    inside, flow, entering, signals = _program(spec, p)
    result = solve_program(-signals[0], signals[1:], budgets, flow, entering)
    if result is None:
        excess, _ = least_excess(signals, budgets, flow, entering)
        raise InfeasibleError(budgets, least_costs(signals, flow, entering), excess)
    return placed(inside, result)


def placed(inside: NDArray[np.bool_], variables: Floats) -> Floats:
    visits = np.zeros(inside.shape)
    visits[inside] = np.maximum(variables, 0.0)
    return visits


def _program(spec: CmdpSpec, p: Floats) -> tuple[NDArray[np.bool_], sparse.csr_array, Floats, Floats]:
    """The variables' places [H, S, A], the flow equations `flow @ d = entering`, and the signals at the variables."""
    shape = (spec.horizon, spec.num_states, spec.num_actions)
    inside = np.broadcast_to(spec.available_actions, shape)
    h, s, a = np.nonzero(inside)
    variables = np.arange(h.size)
    leaves = sparse.csr_array((np.ones(h.size), (h * spec.num_states + s, variables)), (shape[0] * shape[1], h.size))
    goes_on = np.flatnonzero(h < spec.horizon - 1)
    rows = p[h[goes_on] % len(p), s[goes_on], a[goes_on]]
    variable, place = np.nonzero(rows)
    origin = goes_on[variable]
    next_state: NDArray[np.integer] = place
    if spec.lists_next_states:
        next_state = spec.next_states[h[origin] % len(spec.next_states), s[origin], a[origin], place]
    arrives = sparse.csr_array((rows[variable, place], ((h[origin] + 1) * spec.num_states + next_state, origin)), leaves.shape)
    entering = np.zeros(shape[0] * shape[1])
    entering[: spec.num_states] = spec.initial_distribution
    signals = np.array([np.broadcast_to(table, shape)[inside] for table in spec.signals])
    return inside, sparse.csr_array(leaves - arrives), entering, signals


def solve_program(objective: Floats, costs: Floats, budgets: Floats, flow: sparse.csr_array, entering: Floats) -> Floats | None:
    """Minimise `objective`; None if infeasible."""
    for method in METHODS:
        result = optimize.linprog(objective, A_ub=costs, b_ub=budgets, A_eq=flow, b_eq=entering, method=method)
        if result.status == INFEASIBLE:
            return None
        if result.status == SOLVED:
            return np.asarray(result.x, np.float64)
    raise ArithmeticError(f"the linear program was not solved: {result.message}")


def least_costs(signals: Floats, flow: sparse.csr_array, entering: Floats) -> Floats:
    """Per constraint, the least cost that any policy reaches for it alone."""
    unconstrained = (np.empty((0, flow.shape[1])), np.empty(0))
    found = [solve_program(cost, *unconstrained, flow, entering) for cost in signals[1:]]
    return np.array([cost @ visits for cost, visits in zip(signals[1:], found, strict=True) if visits is not None])


def least_excess(signals: Floats, budgets: Floats, flow: sparse.csr_array, entering: Floats) -> tuple[float, Floats]:
    """The least x such that some policy keeps all budgets + x, and the variables of such a policy."""
    num_variables = flow.shape[1]
    objective = np.append(np.zeros(num_variables), 1.0)
    costs = np.column_stack([signals[1:], -np.ones(len(budgets))])
    widened = sparse.csr_array(sparse.hstack([flow, sparse.csr_array((flow.shape[0], 1))]))
    found = solve_program(objective, costs, budgets, widened, entering)
    if found is None:
        raise ArithmeticError("the solver reported a feasible linear program as infeasible")
    return float(found[-1]), found[:-1]
