"""Continuing tasks that several files share."""

from typing import Any

import numpy as np

from safe_psrl import CmdpSpec, Constraint
from tests.safe_psrl.cases import Case, random_case

STOP = np.zeros(1, np.bool_)


def continuing_case(seed: int, *, masked: bool = False, num_constraints: int = 1, share: float = 0.5) -> Case:
    """A random problem without episodes; budgets are `share` of the way from 0 to 1, so that some cannot be kept."""
    rng = np.random.default_rng(seed)
    episodic, p = random_case(seed, (int(rng.integers(2, 8)), int(rng.integers(2, 5)), 1), masked=masked)
    pair = (episodic.num_states, episodic.num_actions)
    budgets = np.clip(share + 0.4 * (rng.random(num_constraints) - 0.5), 0.05, 1.0)
    spec = CmdpSpec(
        num_states=pair[0],
        num_actions=pair[1],
        horizon="continuing",
        reward=rng.random(pair),
        constraints=[Constraint(f"cost-{i}", rng.random(pair), budget, 0.0) for i, budget in enumerate(budgets.tolist())],
        initial_distribution=episodic.initial_distribution,
        available_actions=episodic.available_actions,
        support=episodic.support[0],
    )
    return Case(spec, p)


def trap(start: int) -> Case:
    """States 0 and 1 are never left: 0 pays 1 and costs 1, 1 pays 0.5 and costs 0. From state 2, an action leads to each."""
    next_states = [[[0], [0]], [[1], [1]], [[0], [1]]]
    spec = CmdpSpec(
        num_states=3,
        num_actions=2,
        horizon="continuing",
        reward=[[1, 1], [0.5, 0.5], [0, 0]],
        constraints=[Constraint("cost", [[1, 1], [0, 0], [0, 0]], 0.25, 0.0)],
        initial_state=start,
        next_states=next_states,
    )
    return Case(spec, np.ones((1, 3, 2, 1)))


def large_task(num_states: int, listed: int) -> CmdpSpec:
    """Random, with four actions, and `listed` next states of each pair if not 0."""
    rng, more = np.random.default_rng(0), dict[str, Any]()
    if listed:
        jumps = rng.integers(1, num_states // listed, (num_states, 4, listed)).cumsum(axis=-1)
        more["next_states"] = np.sort((rng.integers(0, num_states, (num_states, 4, 1)) + jumps) % num_states, axis=-1)
    limit = Constraint("c", rng.random((num_states, 4)), 0.45, 0.1)
    pair = {"num_states": num_states, "num_actions": 4, "reward": rng.random((num_states, 4))}
    return CmdpSpec(horizon="continuing", constraints=[limit], initial_state=0, **pair, **more)
