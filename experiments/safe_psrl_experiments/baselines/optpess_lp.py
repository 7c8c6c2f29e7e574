"""OptPess-LP (Liu, Zhou, Kalathil, Kumar and Tian 2021): optimistic rewards, pessimistic costs, on the empirical kernel.

Provenance: the paper's algorithm, per-step counts, constants as published. Plays the safe policy until its pessimistic cost
shows room, then the constrained optimum of the empirical kernel. Told beyond the data: a safe policy, and the number of
episodes to come.
"""

import math
from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import Problem
from safe_psrl.planning.evaluation import dot, evaluate_randomised
from safe_psrl.planning.optimum import solve_cmdp
from safe_psrl.posterior.streams import ENVIRONMENT, stream_of
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World, enter
from safe_psrl_experiments.baselines.confidence import Counts, no_counts, record_path
from safe_psrl_experiments.baselines.playing import BaselineRun, play_randomised, safe_policy

DELTA = 0.01


class Bonuses(NamedTuple):
    """beta = sqrt(log_term / max(N, 1)), times these."""

    log_term: float
    reward: float
    cost: float


class OptPessLpRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, episodes: int) -> None:
        super().__init__("optpess-lp", spec, transitions, seed)
        slack = float(spec.cost_budgets[0] - spec.satisfiable_costs[0])
        size = 1.0 + spec.num_states * spec.horizon
        self._bonuses = Bonuses(
            log_term=math.log(16.0 * spec.num_states**2 * spec.num_actions * spec.horizon * episodes / DELTA),
            reward=size + 4.0 * spec.horizon * size / slack,
            cost=size,
        )
        self._safe = safe_policy(spec, transitions)
        self._counts = no_counts(spec, per_step=True)
        self.keep(self._counts)

    def advance(self, episodes: int) -> None:
        span = self.next_span(episodes)
        run(self.problem, self.world, self._counts, self._safe, self._bonuses, self.ledger, self.seed, *span)


@compiled
def bend(world: World, counts: Counts, bonuses: Bonuses, signals: Floats) -> None:
    """Write the optimistic reward and the pessimistic cost, [2, H, S, A]."""
    for h in range(signals.shape[1]):
        step = h if world.signals.shape[1] > 1 else 0
        for s in range(signals.shape[2]):
            for a in range(signals.shape[3]):
                beta = math.sqrt(bonuses.log_term / max(counts.visits[h, s, a], 1))
                signals[0, h, s, a] = world.signals[0, step, s, a] + bonuses.reward * beta
                signals[1, h, s, a] = world.signals[1, step, s, a] + bonuses.cost * beta


@compiled
def run(
    problem: Problem,
    world: World,
    counts: Counts,
    safe: Floats,
    bonuses: Bonuses,
    ledger: Ledger,
    seed: int,
    first: int,
    last: int,
) -> None:
    horizon, num_states, num_actions = safe.shape
    values, policy = np.empty((2, num_states)), np.empty(safe.shape)
    signals = np.empty((2, horizon, num_states, num_actions))
    states, actions = np.empty(horizon + 1, np.int64), np.empty(horizon, np.int64)
    for k in range(first, last + 1):
        bend(world, counts, bonuses, signals)
        evaluate_randomised(counts.mean, world.next_states, signals, safe, values)
        policy[:] = safe
        if dot(problem.initial, values[1]) < (problem.tau[0] + problem.c0[0]) / 2.0:
            solve_cmdp(counts.mean, world.next_states, signals, problem.available, problem.initial, problem.tau[0], policy)
        evaluate_randomised(world.p, world.next_states, world.signals, policy, values)
        enter(ledger, problem, values, world.best_reward)
        play_randomised(stream_of(seed, k, ENVIRONMENT), world, policy, states, actions)
        record_path(counts, states, actions)
