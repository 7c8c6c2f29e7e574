"""Safe PSRL in plain numpy, line by line after the paper: the reference that the compiled kernels are tested and timed against.

It shares no formula with the library.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from safe_psrl.problem.spec import CmdpSpec

Floats = NDArray[np.float64]
WORD = 2**64 - 1


def mixed(word: int) -> int:
    """SplitMix64's finaliser."""
    z = (word + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


class Stream:
    """The random stream of (seed, episode, purpose): SFC64, placed through numpy's public state."""

    def __init__(self, seed: int, episode: int, purpose: int) -> None:
        first = mixed(seed)
        second = mixed(first ^ episode)
        words = np.array([first, second, mixed(second ^ purpose), 1], np.uint64)
        self._bits = np.random.SFC64(0)
        self._bits.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}
        self._bits.random_raw(12)

    def uniform(self) -> float:
        """53 of the next word's bits, in [0, 1)."""
        return (int(self._bits.random_raw()) >> 11) / 2**53

    def normal(self) -> float:
        """Marsaglia's polar method, its second number unused."""
        point = complex(1, 1)
        while not 0 < abs(point) < 1:
            point = complex(2 * self.uniform() - 1, 2 * self.uniform() - 1)
        return point.real / abs(point) * math.sqrt(-4 * math.log(abs(point)))

    def gamma(self, shape: float) -> float:
        """Marsaglia and Tsang (2000); below shape 1, boosted by U^(1/shape)."""
        if shape < 1:
            boost = math.pow(1 - self.uniform(), 1 / shape)
            return boost * self.gamma(shape + 1)
        d = shape - 1 / 3
        while True:
            x = self.normal()
            v = max(0.0, 1 + x / (3 * math.sqrt(d))) ** 3
            if v > 0 and math.log(1 - self.uniform()) < x**2 / 2 + d * (1 - v + math.log(v)):
                return d * v


def pessimism(k: int, num_states: int, num_actions: int, horizon: int, k_epsilon: float) -> float:
    log = math.log(max(2, k * num_states * num_actions * horizon))
    return k_epsilon * math.sqrt(horizon**3 * num_states**2 * num_actions) * (log + 1) / math.sqrt(k * log)


def sampled_kernel(stream: Stream, alpha: Floats) -> Floats:
    """Normalised gamma draws, one row after the other; `alpha` is 0 outside the support."""
    gammas = np.array([stream.gamma(weight) if weight > 0 else 0.0 for weight in alpha.flat]).reshape(alpha.shape)
    totals = gammas.sum(axis=-1, keepdims=True)
    return gammas / np.where(totals > 0, totals, 1.0)


def backward_induction(p: Floats, objective: Floats, available: NDArray[np.bool_], horizon: int) -> NDArray[np.int64]:
    """[H, S]: `p` [L, S, A, S], `objective` [R, S, A]."""
    value = np.zeros(p.shape[1])
    policy = np.empty((horizon, p.shape[1]), np.int64)
    for h in reversed(range(horizon)):
        q = np.where(available, objective[h % len(objective)] + p[h % len(p)] @ value, -np.inf)
        policy[h], value = q.argmax(axis=-1), q.max(axis=-1)
    return policy


def policy_value(p: Floats, signal: Floats, policy: NDArray[np.int64]) -> Floats:
    """[S]: expected sum of `signal` [R, S, A] from the first step on."""
    states = np.arange(p.shape[1])
    value = np.zeros(p.shape[1])
    for h in reversed(range(len(policy))):
        value = signal[h % len(signal), states, policy[h]] + p[h % len(p), states, policy[h]] @ value
    return value


@dataclass
class PlainRun:
    """Safe PSRL on a known kernel with known signals, from its first episode on."""

    spec: CmdpSpec
    transitions: Floats  # [1|H, S, A, S]
    best_reward: float
    k_epsilon: float = 0.05
    seed: int = 0
    environment_seed: int = 0
    episode: int = 0
    objective_regret: float = 0.0
    dual: Floats = field(init=False)
    counts: Floats = field(init=False)
    constraint_regret: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.dual = np.zeros(self.spec.num_constraints)
        self.constraint_regret = np.zeros(self.spec.num_constraints)
        self.counts = np.zeros(self.spec.dirichlet_prior.shape)

    def advance(self, episodes: int) -> None:
        for _ in range(episodes):
            self.step()

    def step(self) -> NDArray[np.int64]:
        """Plan and play the next episode; return its policy."""
        self.episode += 1
        policy = self._plan()
        self._play(policy)
        return policy

    def _plan(self) -> NDArray[np.int64]:
        spec, k = self.spec, self.episode
        epsilon_k = pessimism(k, spec.num_states, spec.num_actions, spec.horizon, self.k_epsilon)
        eta_k = (spec.cost_budgets - spec.satisfiable_costs) * spec.horizon * math.sqrt(k)
        p_k = sampled_kernel(Stream(self.seed, k, 0), spec.dirichlet_prior + self.counts)
        reward, costs = spec.signals[0], spec.signals[1:]
        objective = reward - np.tensordot(self.dual / eta_k, costs, axes=1)
        policy = backward_induction(p_k, objective, spec.available_actions, spec.horizon)
        predicted = np.array([spec.initial_distribution @ policy_value(p_k, cost, policy) for cost in costs])
        self.dual = np.maximum(0.0, self.dual + predicted + epsilon_k - spec.cost_budgets)
        return policy

    def _play(self, policy: NDArray[np.int64]) -> None:
        spec, p = self.spec, self.transitions
        self.objective_regret += self.best_reward - float(spec.initial_distribution @ policy_value(p, spec.signals[0], policy))
        true = [spec.initial_distribution @ policy_value(p, cost, policy) for cost in spec.signals[1:]]
        self.constraint_regret += np.array(true) - spec.cost_budgets
        stream = Stream(self.environment_seed, self.episode, 1)
        state = _pick(spec.initial_distribution, stream.uniform())
        for h in range(spec.horizon):
            action = policy[h, state]
            next_state = _pick(p[h % len(p), state, action], stream.uniform())
            self.counts[h % len(self.counts), state, action, next_state] += 1
            state = next_state


def _pick(probabilities: Floats, uniform: float) -> int:
    cumulative = np.cumsum(probabilities)
    return min(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")), len(probabilities) - 1)
