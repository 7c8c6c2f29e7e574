"""The constrained MDP for the average per step as a linear program over occupancies (Altman 1999), solved by HiGHS.

Variables are the shares of time mu(s, a) of the available actions. Flow is conserved: with restarts from `initial`,

    sum_a mu(t, a) = (1 - restart) sum_{s,a} p(t|s,a) mu(s, a) + restart initial(t),    sum mu = 1

Used for several constraints, and to check the multiplier search.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from safe_psrl.arrays import Floats, Mask, NextStates
from safe_psrl.errors import InfeasibleError
from safe_psrl.planning.linear_program import least_costs, least_excess, placed, solve_program


def optimal_average_occupancy(
    available: Mask,
    next_states: NextStates,
    p: Floats,
    signals: Floats,
    initial: Floats,
    restart: float,
    budgets: Floats,
) -> Floats:
    """[S, A]: the occupancy of the greatest average reward whose costs keep `budgets`. Raises `InfeasibleError`."""
    inside, flow, entering, tables = _program(available, next_states, p, signals, initial, restart)
    result = solve_program(-tables[0], tables[1:], budgets, flow, entering)
    if result is None:
        excess, _ = least_excess(tables, budgets, flow, entering)
        raise InfeasibleError(budgets, least_costs(tables, flow, entering), excess)
    return placed(inside, result)


def safest_average_occupancy(
    available: Mask,
    next_states: NextStates,
    p: Floats,
    signals: Floats,
    initial: Floats,
    restart: float,
    budgets: Floats,
) -> Floats:
    """[S, A]: an occupancy whose costs exceed `budgets` by as little as possible."""
    inside, flow, entering, tables = _program(available, next_states, p, signals, initial, restart)
    return placed(inside, least_excess(tables, budgets, flow, entering)[1])


def _program(
    available: Mask, next_states: NextStates, p: Floats, signals: Floats, initial: Floats, restart: float
) -> tuple[Mask, sparse.csr_array, Floats, Floats]:
    """The variables' places [S, A], the equations `flow @ mu = entering`, and the signals at the variables."""
    s, a = np.nonzero(available)
    variables = np.arange(s.size)
    leaves = sparse.csr_array((np.ones(s.size), (s, variables)), (len(available), s.size))
    rows = p[0, s, a]
    origin, place = np.nonzero(rows)
    next_state: NDArray[np.integer] = next_states[0, s[origin], a[origin], place] if len(next_states) else place
    arrives = sparse.csr_array(((1.0 - restart) * rows[origin, place], (next_state, origin)), leaves.shape)
    everything = sparse.csr_array(np.ones((1, s.size)))
    flow = sparse.csr_array(sparse.vstack([leaves - arrives, everything]))
    return available, flow, np.append(restart * initial, 1.0), signals[:, 0, s, a]
