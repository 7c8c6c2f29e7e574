"""Environments: they can be reset and stepped, and have the specification that an agent may know."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.errors import SpecError
from safe_psrl.planning.optimum import checked_kernel
from safe_psrl.posterior.streams import ENVIRONMENT, MAX_SEED, generator_of
from safe_psrl.problem.checks import checked_integer
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import pick


class Outcome(NamedTuple):
    """The result of a step."""

    next_state: int
    reward: float
    costs: tuple[float, ...]
    done: bool  # the horizon is reached; never in a continuing task


class Environment(Protocol):
    """An episodic environment with finite states and actions."""

    @property
    def spec(self) -> CmdpSpec:
        """What an agent knows: everything but the kernel."""
        ...

    def reset(self, seed: int | None = None) -> int:
        """Begin an episode and return its first state; with a seed, the first episode of that seed."""
        ...

    def step(self, action: int) -> Outcome:
        """Play `action`. Raises a SpecError once the episode is done."""
        ...


class TabularEnvironment:
    """An environment with a known kernel. Rewards and costs are their means, or with `noisy`, 0 or 1.

    An episode's random stream is that of (seed, episode), as in a compiled `SimulatedRun`: both give the same episodes.
    """

    def __init__(self, spec: CmdpSpec, transitions: ArrayLike, *, noisy: bool = False, seed: int = 0) -> None:
        self.spec = spec
        self.transitions: NDArray[np.float64]  # [1|H, S, A, W]
        self._noisy = noisy
        self.move_to(transitions)
        self._cumulative_initial = np.cumsum(spec.initial_distribution)
        self._seed, self._episode = checked_integer("seed", seed, 0, MAX_SEED), 0
        self._step, self._done = 0, True
        self._state = 0

    def move_to(self, transitions: ArrayLike) -> None:
        """Change the kernel from the next step on."""
        self.transitions = checked_kernel(self.spec, transitions)
        self._cumulative = np.cumsum(self.transitions, axis=-1)

    def reset(self, seed: int | None = None) -> int:
        if seed is not None:
            self._seed, self._episode = checked_integer("seed", seed, 0, MAX_SEED), 0
        self._episode += 1
        self._generator = generator_of(self._seed, self._episode, ENVIRONMENT)
        self._step, self._done = 0, False
        self._state = int(pick(self._cumulative_initial, self._generator.random()))
        return self._state

    def step(self, action: int) -> Outcome:
        if self._done:
            raise SpecError("action", action, "comes after the episode's end; reset the environment first")
        checked_integer("action", action, 0, self.spec.num_actions - 1)
        if not self.spec.available_actions[self._state, action]:
            raise SpecError("action", action, f"is not available in state {self._state}")
        row = self._cumulative[self._step % len(self._cumulative), self._state, action]
        next_state = int(pick(row, self._generator.random()))
        if self.spec.lists_next_states:
            listed = self.spec.next_states
            next_state = int(listed[self._step % len(listed), self._state, action, next_state])
        signals = self.spec.signals[:, self._step % self.spec.signals.shape[1], self._state, action]
        seen = [float(self._generator.random() < mean) for mean in signals] if self._noisy else signals.tolist()
        self._step += 1
        self._state, self._done = next_state, self._step == self.spec.horizon
        return Outcome(next_state, seen[0], tuple(seen[1:]), self._done)
