"""DOPE and OptCMDP: optimism about the kernel, planned in a box around the empirical one.

DOPE (Bura, HasanzadeZonuzy, Kalathil, Shakkottai and Chamberland 2022): the paper's algorithm with the constants of its
published code. Optimistic about kernel and reward, pessimistic about the cost; begins with a safe policy for K0 episodes,
and returns to it where its program is infeasible. Told beyond the data: the true support, a safe policy, and the number of
episodes to come.

OptCMDP (Efroni, Mannor and Pirotta 2020): the paper's algorithm with the widths and the program of DOPE's published code,
its signals as they are. Where the program is infeasible, it plays the least cost in the box. Told beyond the data: the true
support, and the number of episodes to come.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.errors import SpecError
from safe_psrl.methods.episode import Problem
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World
from safe_psrl_experiments.baselines.box_search import solve_in_box
from safe_psrl_experiments.baselines.playing import BaselineRun, Counts, no_counts, play_randomised, safe_policy

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
    """DOPE or OptCMDP, depending on `manner`."""

    def __init__(self, name: str, spec: CmdpSpec, transitions: Floats, seed: int, manner: Manner) -> None:
        super().__init__(name, spec, transitions, seed)
        if not spec.stationary or spec.signals.shape[1] > 1:
            raise SpecError("algorithm", name, "is defined for one kernel, reward and cost for all steps only")
        pair = (spec.num_states, spec.num_actions)
        self.counts = no_counts(spec, per_step=False)
        self.box = Box(
            self.world.p[0] > 0, np.empty((*pair, pair[0])), np.empty((*pair, pair[0])), np.empty(pair), np.empty(pair)
        )
        for s, a in np.ndindex(*pair):
            update_box(self.box, self.counts, self.world, manner, s, a)
        self.keep(self.counts)
        self.keep(self.box)
        self.play = partial(run, self.problem, self.world, self.counts, self.box, manner, self.ledger, seed)


class DopeRun(OptimisticRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, episodes: int) -> None:
        slack = float(spec.cost_budgets[0] - spec.satisfiable_costs[0])
        manner = Manner(
            log_term=log_term(spec, episodes),
            reward_bonus=spec.horizon**2 / slack,
            cost_bonus=float(spec.horizon),
            safe_until=spec.num_states**2 * spec.num_actions * spec.horizon**3 / slack**2,
            safe_policy=safe_policy(spec, transitions),
            safe_if_infeasible=True,
        )
        super().__init__("dope", spec, transitions, seed, manner)


class OptCmdpRun(OptimisticRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, episodes: int) -> None:
        manner = Manner(
            log_term=log_term(spec, episodes),
            reward_bonus=0.0,
            cost_bonus=0.0,
            safe_until=-1.0,
            safe_policy=safe_policy(spec, transitions),
            safe_if_infeasible=False,
        )
        super().__init__("optcmdp", spec, transitions, seed, manner)


def log_term(spec: CmdpSpec, episodes: int) -> float:
    """L = log(6 S^2 H K / delta)."""
    return math.log(6.0 * spec.num_states**2 * spec.horizon * episodes / DELTA)


@compiled
def bernstein_width(mean: float, visits: int, log_term: float) -> float:
    """min(1, 2 sqrt(L phat (1 - phat) / n) + 14 L / (3 n)); 1 if unvisited (Bura et al. 2022; Efroni et al. 2020)."""
    if visits == 0:
        return 1.0
    return min(1.0, 2.0 * math.sqrt(log_term * mean * (1.0 - mean) / visits) + 14.0 * log_term / (3.0 * visits))


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
    policy = np.empty((horizon, num_states, num_actions))
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
        states, actions = play_randomised(problem, world, policy, counts, ledger, seed, k)
        for h in range(horizon):
            update_box(box, counts, world, manner, states[h], actions[h])
