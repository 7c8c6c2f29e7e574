"""The part that DOPE and OptCMDP share: the box around the empirical kernel, and a run that plans in it.

Both are told the true support of the kernel. Widths are Bernstein's; the log term knows the number of episodes to come.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import Problem
from safe_psrl.planning.evaluation import evaluate_randomised
from safe_psrl.posterior.streams import ENVIRONMENT, stream_of
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World, enter
from safe_psrl_experiments.baselines.box_search import solve_in_box
from safe_psrl_experiments.baselines.confidence import Counts, bernstein_width, no_counts, record_path
from safe_psrl_experiments.baselines.playing import BaselineRun, play_randomised, require_stationary

DELTA = 0.01


class Box(NamedTuple):
    """The rows that are still held possible, and the signals as the algorithm bends them. All [S, A, S] or [S, A]."""

    support: NDArray[np.bool_]
    low: Floats
    high: Floats
    reward: Floats
    cost: Floats


class Manner(NamedTuple):
    """How an algorithm plans: what a unit of width adds to reward and cost, and when the safe policy is played."""

    log_term: float
    reward_bonus: float
    cost_bonus: float
    safe_until: float  # this episode, counted from 0
    safe_policy: Floats  # [H, S, A]
    safe_if_infeasible: bool  # else the least cost in the box


class OptimisticRun(BaselineRun):
    """One of the two; `manner` says which."""

    def __init__(self, name: str, spec: CmdpSpec, transitions: Floats, seed: int, manner: Manner) -> None:
        super().__init__(name, spec, transitions, seed)
        require_stationary(name, spec)
        pair = (spec.num_states, spec.num_actions)
        self.counts = no_counts(spec, per_step=False)
        self._manner = manner
        self.box = Box(
            self.world.p[0] > 0, np.empty((*pair, pair[0])), np.empty((*pair, pair[0])), np.empty(pair), np.empty(pair)
        )
        for s, a in np.ndindex(*pair):
            update_box(self.box, self.counts, self.world, manner, s, a)
        self.keep(self.counts)
        self.keep(self.box)

    def advance(self, episodes: int) -> None:
        span = self.next_span(episodes)
        run(self.problem, self.world, self.counts, self.box, self._manner, self.ledger, self.seed, *span)


def log_term(spec: CmdpSpec, episodes: int) -> float:
    """L = log(6 S^2 H K / delta)."""
    return math.log(6.0 * spec.num_states**2 * spec.horizon * episodes / DELTA)


@compiled
def update_box(box: Box, counts: Counts, world: World, manner: Manner, s: int, a: int) -> None:
    """After a visit of (s, a): widths over all next states bend the signals, those on the support bound the row."""
    total = 0.0
    for t in range(box.low.shape[2]):
        mean = counts.mean[0, s, a, t]
        width = bernstein_width(mean, counts.visits[0, s, a], manner.log_term)
        total += width
        box.low[s, a, t] = max(0.0, mean - width) if box.support[s, a, t] else 0.0
        box.high[s, a, t] = min(1.0, mean + width) if box.support[s, a, t] else 0.0
    box.reward[s, a] = world.signals[0, 0, s, a] + manner.reward_bonus * total
    box.cost[s, a] = world.signals[1, 0, s, a] + manner.cost_bonus * total


@compiled
def run(
    problem: Problem, world: World, counts: Counts, box: Box, manner: Manner, ledger: Ledger, seed: int, first: int, last: int
) -> None:
    horizon, (num_states, num_actions) = world.horizon, problem.available.shape
    values, policy = np.empty((2, num_states)), np.empty((horizon, num_states, num_actions))
    states, actions = np.empty(horizon + 1, np.int64), np.empty(horizon, np.int64)
    for k in range(first, last + 1):
        feasible = False
        if k - 1 > manner.safe_until:
            feasible, _, least = solve_in_box(
                box.low, box.high, box.reward, box.cost, problem.available, problem.initial, problem.tau[0], policy
            )
            if not feasible and not manner.safe_if_infeasible:
                solve_in_box(box.low, box.high, box.reward, box.cost, problem.available, problem.initial, least + 1e-6, policy)
                feasible = True
        if not feasible:
            policy[:] = manner.safe_policy
        evaluate_randomised(world.p, world.next_states, world.signals, policy, values)
        enter(ledger, problem, values, world.best_reward)
        play_randomised(stream_of(seed, k, ENVIRONMENT), world, policy, states, actions)
        record_path(counts, states, actions)
        for h in range(horizon):
            update_box(box, counts, world, manner, states[h], actions[h])
