"""Random constrained MDPs of any size, with feasible budgets that bind."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from safe_psrl.errors import SpecError
from safe_psrl.planning.average_cost import RESTART, first_actions, plan_average
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.problem.checks import checked_integer
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.spec import CONTINUING, MAX_TABLE_ENTRIES, CmdpSpec
from safe_psrl.problem.support import EVERY_STATE

LEAST_SLACK = 0.05  # between satisfiable cost and budget, per step


def random_cmdp(
    num_states: int, num_actions: int, horizon: int | str, seed: int = 0, num_constraints: int = 1, concentration: float = 0.3
) -> tuple[CmdpSpec, NDArray[np.float64]]:
    """A specification and a kernel [S, A, S]: rows Dirichlet(`concentration`), rewards and costs uniform.

    Budgets lie halfway between the costs of a frugal policy and those of the greedy one, so that they bind. With the horizon
    "continuing" they are averages per step.
    """
    for field, size in {
        "states": num_states,
        "actions": num_actions,
        "horizon": 1 if horizon == CONTINUING else horizon,
        "constraints": num_constraints,
    }.items():
        checked_integer(field, size, 1)
    if num_states**2 * num_actions > MAX_TABLE_ENTRIES:
        raise SpecError("states", num_states, f"needs a kernel of more than {MAX_TABLE_ENTRIES} entries")
    generator = np.random.default_rng(checked_integer("seed", seed, 0))
    p = generator.dirichlet(np.full(num_states, concentration), size=(num_states, num_actions))
    signals = generator.random((1 + num_constraints, 1, num_states, num_actions))
    steps = horizon if isinstance(horizon, int) else 1
    costs = partial(_costs, p, signals, steps) if isinstance(horizon, int) else partial(_average_costs, p, signals)
    frugal = costs(np.append(0.0, -np.ones(num_constraints)))
    greedy = costs(np.append(1.0, np.zeros(num_constraints)))
    budgets = np.minimum(frugal + np.maximum((greedy - frugal) / 2, LEAST_SLACK * steps), steps)
    satisfiable = frugal + (budgets - frugal) / 4
    constraints = [
        Constraint(f"cost-{i + 1}", signals[1 + i, 0], float(budgets[i]), float(satisfiable[i])) for i in range(num_constraints)
    ]
    spec = CmdpSpec(
        num_states=num_states, num_actions=num_actions, horizon=horizon, reward=signals[0, 0], constraints=constraints
    )
    return spec, p


def _costs(
    p: NDArray[np.float64], signals: NDArray[np.float64], horizon: int, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[M]: the costs from state 0 of the policy that is best for the weighted signals."""
    num_states, num_actions, _ = p.shape
    values = np.empty((len(signals), num_states))
    available = np.ones((num_states, num_actions), np.bool_)
    policy, stop = np.empty((horizon, num_states), np.int32), np.zeros(1, np.bool_)
    plan_policy(p[None], EVERY_STATE, signals, weights, available, policy, values, stop)
    return values[1:, 0]


def _average_costs(p: NDArray[np.float64], signals: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """[M]: the same per step, of a task that never ends."""
    num_states, num_actions, _ = p.shape
    initial, reached, gains = np.eye(1, num_states)[0].copy(), np.zeros(num_states), np.zeros(len(signals))
    available, policy, stop = (
        np.ones((num_states, num_actions), np.bool_),
        np.zeros((num_states, num_actions)),
        np.zeros(1, np.bool_),
    )
    first_actions(available, policy)
    plan_average(p[None], EVERY_STATE, signals, weights, available, initial, RESTART, policy, reached, gains, stop)
    return gains[1:]
