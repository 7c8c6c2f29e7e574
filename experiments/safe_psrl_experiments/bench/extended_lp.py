"""The extended linear program of DOPE and OptCMDP as their authors solve it: by an LP solver, here HiGHS.

Variables are the occupancies z_h(s, a, s') of the available actions and the next states that the box allows. They flow; each
row keeps the box, low * z_h(s, a, .) <= z_h(s, a, s') <= high * z_h(s, a, .); their cost keeps the budget.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from safe_psrl.arrays import Floats

INFEASIBLE = 2  # scipy's status
TOLERANCES = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}


def solve_extended_lp(
    low: Floats,
    high: Floats,
    reward: Floats,
    cost: Floats,
    available: NDArray[np.bool_],
    initial: Floats,
    budget: float,
    horizon: int,
) -> tuple[bool, float, float]:
    """Whether it is feasible, its reward and its cost (if infeasible, those of a least cost). Tables [S, A, S] and [S, A]."""
    num_states = initial.size
    s, a, t = np.nonzero((high > 0) & available[..., None])
    rewards, costs = np.tile(reward[s, a], horizon), np.tile(cost[s, a], horizon)
    start = np.zeros(horizon * num_states)
    start[:num_states] = initial
    box = sparse.kron(sparse.eye_array(horizon), _box(low, high, s, a, t), format="csr")
    limits: dict[str, Any] = {"A_eq": _flow(s, t, num_states, horizon), "b_eq": start, "method": "highs", "options": TOLERANCES}
    within = sparse.vstack([box, sparse.csr_array(costs[None])], format="csr")
    found = optimize.linprog(-rewards, A_ub=within, b_ub=np.append(np.zeros(box.shape[0]), budget), **limits)
    feasible = found.status != INFEASIBLE
    if not feasible:
        found = optimize.linprog(costs, A_ub=box, b_ub=np.zeros(box.shape[0]), **limits)
    if found.status != 0:
        raise ArithmeticError(f"the linear program was not solved: {found.message}")
    return feasible, float(rewards @ found.x), float(costs @ found.x)


def _box(low: Floats, high: Floats, s: NDArray[np.int64], a: NDArray[np.int64], t: NDArray[np.int64]) -> sparse.csr_array:
    """One step's rows `_box @ z <= 0`; bounds that hold by themselves, 0 and 1, have none."""
    pair = s * low.shape[1] + a
    same_row = sparse.csr_array(pair[:, None] == pair, dtype=np.float64)
    itself = sparse.eye_array(s.size, format="csr")
    above = itself - sparse.diags_array(high[s, a, t]) @ same_row
    below = sparse.diags_array(low[s, a, t]) @ same_row - itself
    return sparse.csr_array(sparse.vstack([above.tocsr()[high[s, a, t] < 1], below.tocsr()[low[s, a, t] > 0]]))


def _flow(s: NDArray[np.int64], t: NDArray[np.int64], num_states: int, horizon: int) -> sparse.csr_array:
    """[H S, variables]: what leaves a state at a step, less what came into it."""
    ones, variables = np.ones(s.size), np.arange(s.size)
    leaves = sparse.csr_array((ones, (s, variables)), (num_states, s.size))
    arrives = sparse.csr_array((ones, (t, variables)), (num_states, s.size))
    before = sparse.eye_array(horizon, k=-1)
    return sparse.csr_array(sparse.kron(sparse.eye_array(horizon), leaves) - sparse.kron(before, arrives))
