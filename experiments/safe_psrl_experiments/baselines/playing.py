"""What the compared systems share: the world, the ledger, the environment's randomness, counts, and the safe policy.

Also the safe baseline itself: the true optimum at budget c0 in every episode, which DOPE and OptPess-LP are given to begin with
(Bura et al. 2022; Liu et al. 2021). It learns nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.compiled import compiled
from safe_psrl.errors import SpecError
from safe_psrl.methods.episode import Problem, problem_of
from safe_psrl.methods.epoch import pick_action
from safe_psrl.planning.evaluation import evaluate_randomised
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.posterior.streams import ENVIRONMENT, stream_of, uniform
from safe_psrl.problem.options import SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World, empty_ledger, enter, pick, world_of


class Counts(NamedTuple):
    """`mean` is the empirical row of a pair; even over all states until it is visited."""

    transitions: Floats  # [L, S, A, S]
    visits: NDArray[np.int64]  # [L, S, A]
    mean: Floats  # [L, S, A, S]


def no_counts(spec: CmdpSpec, *, per_step: bool) -> Counts:
    shape = (spec.horizon if per_step else 1, spec.num_states, spec.num_actions, spec.num_states)
    return Counts(np.zeros(shape), np.zeros(shape[:3], np.int64), np.full(shape, 1.0 / spec.num_states))


@compiled
def record_path(counts: Counts, states: NDArray[np.int64], actions: NDArray[np.int64]) -> None:
    """Add an episode's transitions; `states` has one more entry than `actions`."""
    for h in range(actions.size):
        step = h if counts.visits.shape[0] > 1 else 0
        s, a = states[h], actions[h]
        counts.transitions[step, s, a, states[h + 1]] += 1
        counts.visits[step, s, a] += 1
        for t in range(counts.mean.shape[3]):
            counts.mean[step, s, a, t] = counts.transitions[step, s, a, t] / counts.visits[step, s, a]


class BaselineRun:
    """A run of a compared system. Subclasses set `play`, and write to `dual` and `epsilon` if they have them."""

    play: Callable[[int, int], None]  # the episodes from the first to the last

    def __init__(self, name: str, spec: CmdpSpec, transitions: Floats, seed: int) -> None:
        if spec.num_constraints != 1 or spec.learns_signals:
            raise SpecError("algorithm", name, "is defined for one constraint with known reward and cost only")
        if spec.lists_next_states:
            raise SpecError("algorithm", name, "keeps tables over all next states; give `support` in place of `next_states`")
        self.name = name
        self.episode = 0
        self.seed = seed
        self.problem: Problem = problem_of(spec, SafePsrlOptions())
        self.world: World = world_of(spec, transitions)
        self.ledger: Ledger = empty_ledger(spec.num_constraints)
        self.dual, self.epsilon = np.zeros(1), np.zeros(1)
        self.tables: dict[str, NDArray[Any]] = {"dual": self.dual, "epsilon": self.epsilon}
        self.keep(self.ledger)

    @property
    def dual_variables(self) -> Floats:
        return self.dual.copy()

    @property
    def pessimism(self) -> Floats:
        return self.epsilon.copy()

    def keep(self, tables: NamedTuple) -> None:
        """Register tables that an episode changes."""
        self.tables |= tables._asdict()

    def advance(self, episodes: int) -> None:
        first = self.episode + 1
        self.episode += episodes
        self.play(first, self.episode)

    def move_to(self, _transitions: Floats) -> None:
        raise SpecError("algorithm", self.name, "does not support a world that changes; run safe-psrl or certified")


def safe_policy(spec: CmdpSpec, transitions: Floats) -> Floats:
    """[H, S, A]: the true optimum at budget c0, which the systems that need a safe policy are given."""
    return exact_optimum(spec, transitions, spec.satisfiable_costs).policy


@compiled
def play_randomised(
    problem: Problem, world: World, probabilities: Floats, counts: Counts, ledger: Ledger, seed: int, k: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Play a randomised policy [H, S, A] on the true kernel in episode `k`, and record it. Returns states and actions."""
    values = np.empty((2, problem.available.shape[0]))
    evaluate_randomised(world.p, world.next_states, world.signals, probabilities, values)
    enter(ledger, problem, world, values)
    states, actions = np.empty(world.horizon + 1, np.int64), np.empty(world.horizon, np.int64)
    stream = stream_of(seed, k, ENVIRONMENT)
    states[0] = pick(world.cumulative_initial, uniform(stream))
    for h in range(actions.size):
        actions[h] = pick_action(probabilities[h, states[h]], uniform(stream))
        row = world.cumulative_p[h if world.p.shape[0] > 1 else 0, states[h], actions[h]]
        states[h + 1] = pick(row, uniform(stream))
    record_path(counts, states, actions)
    return states, actions


class SafeBaselineRun(BaselineRun):
    def __init__(self, spec: CmdpSpec, transitions: Floats, seed: int, _episodes: int = 0) -> None:
        super().__init__("safe-baseline", spec, transitions, seed)
        world, values = self.world, np.empty((2, spec.num_states))
        evaluate_randomised(world.p, world.next_states, world.signals, safe_policy(spec, transitions), values)

        def play(first: int, last: int) -> None:
            for _ in range(first, last + 1):
                enter(self.ledger, self.problem, world, values)

        self.play = play
