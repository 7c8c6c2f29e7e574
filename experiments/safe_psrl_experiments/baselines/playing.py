"""What every compared system shares: the true world, the books, the environment's randomness, and the safe policy."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, Words
from safe_psrl.compiled import compiled
from safe_psrl.errors import SpecError
from safe_psrl.methods.episode import Problem, problem_of
from safe_psrl.planning.optimum import exact_optimum
from safe_psrl.posterior.streams import uniform
from safe_psrl.problem.options import SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, World, empty_ledger, pick, world_of


class BaselineRun:
    """A run of a compared system. Subclasses write `advance`, and set `dual` and `epsilon` if they have such things."""

    def __init__(self, name: str, spec: CmdpSpec, transitions: Floats, seed: int) -> None:
        if spec.num_constraints != 1 or spec.learns_signals:
            raise SpecError("algorithm", name, "is defined for one constraint with known reward and cost only")
        if spec.lists_next_states:
            raise SpecError("algorithm", name, "keeps tables over all next states; give `support` in place of `next_states`")
        self.episode = 0
        self.seed = seed
        self.problem: Problem = problem_of(spec, SafePsrlOptions())
        self.world: World = world_of(spec, transitions)
        self.ledger: Ledger = empty_ledger(spec)
        self.dual, self.epsilon = np.zeros(1), np.zeros(1)
        self._tables: dict[str, NDArray[Any]] = {"dual": self.dual, "epsilon": self.epsilon}
        self.keep(self.ledger)

    @property
    def dual_variables(self) -> Floats:
        return self.dual.copy()

    @property
    def pessimism(self) -> Floats:
        return self.epsilon.copy()

    @property
    def tables(self) -> dict[str, NDArray[Any]]:
        return self._tables

    def keep(self, tables: NamedTuple) -> None:
        """Say that an episode changes these."""
        self._tables |= tables._asdict()

    def next_span(self, episodes: int) -> tuple[int, int]:
        """First and last of the next episodes."""
        first = self.episode + 1
        self.episode += episodes
        return first, self.episode


def safe_policy(spec: CmdpSpec, transitions: Floats) -> Floats:
    """[H, S, A]: the true optimum at budget c0, which the systems that need a safe policy are given."""
    return exact_optimum(spec, transitions, spec.satisfiable_costs).policy


def require_stationary(name: str, spec: CmdpSpec) -> None:
    if not spec.stationary or spec.signals.shape[1] > 1:
        raise SpecError("algorithm", name, "is defined for one kernel, reward and cost for all steps only")


@compiled
def play_randomised(
    stream: Words, world: World, probabilities: Floats, states: NDArray[np.int64], actions: NDArray[np.int64]
) -> None:
    """Play a randomised policy [H, S, A] on the true kernel; write the path."""
    states[0] = pick(world.cumulative_initial, uniform(stream))
    for h in range(actions.size):
        s = states[h]
        rest, last = uniform(stream), 0
        for a in range(probabilities.shape[2]):
            if probabilities[h, s, a] > 0.0:
                last = a
                rest -= probabilities[h, s, a]
                if rest < 0.0:
                    break
        actions[h] = last
        step_p = h if world.p.shape[0] > 1 else 0
        states[h + 1] = pick(world.cumulative_p[step_p, s, last], uniform(stream))
