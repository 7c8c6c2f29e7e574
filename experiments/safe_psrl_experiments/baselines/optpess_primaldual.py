"""OptPess-PrimalDual (Liu, Zhou, Kalathil, Kumar and Tian 2021): optimistic signals and a pessimistic dual variable.

Provenance: the paper's algorithm, per-step counts, its pessimism times a coefficient K_eps as in the published figures.
Told beyond the data: the number of episodes to come.
"""

import math

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.errors import SpecError
from safe_psrl.methods.episode import Problem
from safe_psrl.methods.schedule import dual_scale_at, dual_update
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import dot, evaluate_policy
from safe_psrl.posterior.streams import ENVIRONMENT, stream_of, uniform
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World, enter, pick
from safe_psrl_experiments.baselines.confidence import Counts, no_counts, record_path
from safe_psrl_experiments.baselines.playing import BaselineRun

DELTA = 0.01
DEFAULT_COEFFICIENT = 0.1


class OptPessPrimalDualRun(BaselineRun):
    def __init__(
        self, spec: CmdpSpec, transitions: Floats, seed: int, episodes: int, coefficient: float = DEFAULT_COEFFICIENT
    ) -> None:
        super().__init__("optpess-primaldual", spec, transitions, seed)
        if not isinstance(coefficient, int | float) or not 0 <= coefficient < math.inf:
            raise SpecError("pessimism_coefficient", coefficient, "must be a number, not negative")
        self._coefficient = float(coefficient)
        self._delta = DELTA / (16.0 * spec.num_states**2 * spec.num_actions * spec.horizon)
        self._log_term = math.log(episodes / self._delta)
        self._counts = no_counts(spec, per_step=True)
        self._signals = np.empty((2, spec.horizon, spec.num_states, spec.num_actions))
        for h, s, a in np.ndindex(self._signals.shape[1:]):
            bend(self.world, self._counts, self._log_term, h, s, a, self._signals)
        self.keep(self._counts)
        self._tables |= {"signals": self._signals}

    def advance(self, episodes: int) -> None:
        run(
            self.problem,
            self.world,
            self._counts,
            self._signals,
            self.dual,
            self.epsilon,
            self.ledger,
            self._coefficient,
            self._delta,
            self._log_term,
            self.seed,
            *self.next_span(episodes),
        )


@compiled
def bend(world: World, counts: Counts, log_term: float, h: int, s: int, a: int, signals: Floats) -> None:
    """Write the optimistic reward and cost of a pair: r + B beta and c - B beta, B = 1 + HS."""
    step = h if world.signals.shape[1] > 1 else 0
    bonus = (1.0 + signals.shape[1] * signals.shape[2]) * math.sqrt(log_term / max(counts.visits[h, s, a], 1))
    signals[0, h, s, a] = world.signals[0, step, s, a] + bonus
    signals[1, h, s, a] = world.signals[1, step, s, a] - bonus


@compiled
def run(
    problem: Problem,
    world: World,
    counts: Counts,
    signals: Floats,
    dual: Floats,
    epsilon: Floats,
    ledger: Ledger,
    coefficient: float,
    delta: float,
    log_term: float,
    seed: int,
    first: int,
    last: int,
) -> None:
    horizon, num_states = signals.shape[1], signals.shape[2]
    num_actions = signals.shape[3]
    policy = np.empty((horizon, num_states), np.int32)
    values, true_values = np.empty((2, num_states)), np.empty((2, num_states))
    states, actions = np.empty(horizon + 1, np.int64), np.empty(horizon, np.int64)
    weights = np.array([1.0, 0.0])
    size = horizon**2 * math.sqrt(float(num_states) ** 3 * num_actions)
    for k in range(first, last + 1):
        log_k = math.log(k / delta)
        epsilon[0] = coefficient * size * (1.0 + log_k) / math.sqrt(k * log_k)
        weights[1] = -dual[0] / dual_scale_at(k, horizon, problem.tau[0], problem.c0[0])
        plan_policy(counts.mean, world.next_states, signals, weights, problem.available, policy, values)
        predicted = max(0.0, dot(problem.initial, values[1]))
        dual[0] = dual_update(dual[0], predicted, epsilon[0], problem.tau[0])
        evaluate_policy(world.p, world.next_states, world.signals, policy, true_values)
        enter(ledger, problem, true_values, world.best_reward)
        stream = stream_of(seed, k, ENVIRONMENT)
        states[0] = pick(world.cumulative_initial, uniform(stream))
        for h in range(horizon):
            actions[h] = policy[h, states[h]]
            row = world.cumulative_p[h if world.p.shape[0] > 1 else 0, states[h], actions[h]]
            states[h + 1] = pick(row, uniform(stream))
        record_path(counts, states, actions)
        for h in range(horizon):
            bend(world, counts, log_term, h, states[h], actions[h], signals)
