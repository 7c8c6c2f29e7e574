"""OptPess-LP and OptPess-PrimalDual (Liu, Zhou, Kalathil, Kumar and Tian 2021), on per-step counts, constants as published.

OptPess-LP: optimistic rewards, pessimistic costs. Plays the safe policy until its pessimistic cost shows room, then the
constrained optimum of the empirical kernel. Told beyond the data: a safe policy, and the number of episodes to come.

OptPess-PrimalDual: optimistic signals and a pessimistic dual variable; its pessimism times a coefficient K_eps as in the
published figures. Told beyond the data: the number of episodes to come.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.errors import SpecError
from safe_psrl.methods.episode import Problem
from safe_psrl.methods.schedule import dual_scale_at, dual_update
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import dot, evaluate_policy, evaluate_randomised
from safe_psrl.planning.optimum import solve_cmdp
from safe_psrl.posterior.streams import ENVIRONMENT, stream_of, uniform
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World, enter, pick
from safe_psrl_experiments.baselines.playing import BaselineRun, Counts, no_counts, play_randomised, record_path, safe_policy

DELTA = 0.01
DEFAULT_COEFFICIENT = 0.1


class Bonuses(NamedTuple):
    """beta = sqrt(log_term / max(N, 1)), times these, is added to the signals."""

    log_term: float
    reward: float
    cost: float


@compiled
def add_bonuses(world: World, counts: Counts, bonuses: Bonuses, signals: Floats) -> None:
    """Write the signals with their bonuses, [2, H, S, A]."""
    for h in range(signals.shape[1]):
        step = h if world.signals.shape[1] > 1 else 0
        for s in range(signals.shape[2]):
            for a in range(signals.shape[3]):
                beta = math.sqrt(bonuses.log_term / max(counts.visits[h, s, a], 1))
                signals[0, h, s, a] = world.signals[0, step, s, a] + bonuses.reward * beta
                signals[1, h, s, a] = world.signals[1, step, s, a] + bonuses.cost * beta


class OptPessLpRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, episodes: int) -> None:
        super().__init__("optpess-lp", spec, transitions, seed)
        slack = float(spec.cost_budgets[0] - spec.satisfiable_costs[0])
        size = 1.0 + spec.num_states * spec.horizon
        bonuses = Bonuses(
            log_term=math.log(16.0 * spec.num_states**2 * spec.num_actions * spec.horizon * episodes / DELTA),
            reward=size + 4.0 * spec.horizon * size / slack,
            cost=size,
        )
        counts = no_counts(spec, per_step=True)
        self.keep(counts)
        safe = safe_policy(spec, transitions)
        self.play = partial(run_lp, self.problem, self.world, counts, safe, bonuses, self.ledger, seed)


@compiled
def run_lp(
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
    values, policy, stop = np.empty((2, num_states)), np.empty(safe.shape), np.zeros(1, np.bool_)
    signals = np.empty((2, horizon, num_states, num_actions))
    for k in range(first, last + 1):
        add_bonuses(world, counts, bonuses, signals)
        evaluate_randomised(counts.mean, world.next_states, signals, safe, values)
        policy[:] = safe
        if dot(problem.initial, values[1]) < (problem.tau[0] + problem.c0[0]) / 2.0:
            known = (counts.mean, world.next_states, signals, problem.available, problem.initial)
            solve_cmdp(*known, problem.tau[0], policy, stop)
        play_randomised(problem, world, policy, counts, ledger, seed, k)


class OptPessPrimalDualRun(BaselineRun):
    def __init__(
        self,
        spec: CmdpSpec,
        transitions: Floats,
        seed: int,
        episodes: int,
        pessimism_coefficient: float = DEFAULT_COEFFICIENT,
    ) -> None:
        super().__init__("optpess-primaldual", spec, transitions, seed)
        if not isinstance(pessimism_coefficient, int | float) or not 0 <= pessimism_coefficient < math.inf:
            raise SpecError("pessimism_coefficient", pessimism_coefficient, "must be a finite number, at least 0")
        delta = DELTA / (16.0 * spec.num_states**2 * spec.num_actions * spec.horizon)
        size = 1.0 + spec.num_states * spec.horizon
        bonuses = Bonuses(math.log(episodes / delta), reward=size, cost=-size)
        counts = no_counts(spec, per_step=True)
        self.keep(counts)
        known = (self.problem, self.world, counts, bonuses, float(pessimism_coefficient), delta)
        self.play = partial(run_primal_dual, *known, self.dual, self.epsilon, self.ledger, seed)


@compiled
def run_primal_dual(
    problem: Problem,
    world: World,
    counts: Counts,
    bonuses: Bonuses,
    coefficient: float,
    delta: float,
    dual: Floats,
    epsilon: Floats,
    ledger: Ledger,
    seed: int,
    first: int,
    last: int,
) -> None:
    horizon, (num_states, num_actions) = world.horizon, problem.available.shape
    policy, signals = np.empty((horizon, num_states), np.int32), np.empty((2, horizon, num_states, num_actions))
    values, true_values = np.empty((2, num_states)), np.empty((2, num_states))
    states, actions = np.empty(horizon + 1, np.int64), np.empty(horizon, np.int64)
    weights, stop = np.array([1.0, 0.0]), np.zeros(1, np.bool_)
    size = horizon**2 * math.sqrt(float(num_states) ** 3 * num_actions)
    for k in range(first, last + 1):
        log_k = math.log(k / delta)
        epsilon[0] = coefficient * size * (1.0 + log_k) / math.sqrt(k * log_k)
        weights[1] = -dual[0] / dual_scale_at(k, horizon, problem.tau[0], problem.c0[0])
        add_bonuses(world, counts, bonuses, signals)
        plan_policy(counts.mean, world.next_states, signals, weights, problem.available, policy, values, stop)
        predicted = max(0.0, dot(problem.initial, values[1]))
        dual[0] = dual_update(dual[0], predicted, epsilon[0], problem.tau[0])
        evaluate_policy(world.p, world.next_states, world.signals, policy, true_values)
        enter(ledger, problem, world, true_values)
        stream = stream_of(seed, k, ENVIRONMENT)
        states[0] = pick(world.cumulative_initial, uniform(stream))
        for h in range(horizon):
            actions[h] = policy[h, states[h]]
            row = world.cumulative_p[h if world.p.shape[0] > 1 else 0, states[h], actions[h]]
            states[h + 1] = pick(row, uniform(stream))
        record_path(counts, states, actions)
