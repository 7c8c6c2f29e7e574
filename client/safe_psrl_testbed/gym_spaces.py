"""States and actions of Gymnasium's spaces."""

from collections.abc import Sequence
from typing import Any, Protocol

from gymnasium import spaces

from safe_psrl.errors import SpecError


class StateOf(Protocol):
    """Maps observations to states, as `Quantiser` does."""

    num_states: int

    def __call__(self, observation: Any) -> int: ...


class DiscreteStates:
    def __init__(self, space: spaces.Discrete) -> None:
        self.num_states = int(space.n)
        self._start = int(space.start)

    def __call__(self, observation: Any) -> int:
        return int(observation) - self._start


def discrete_states(space: spaces.Space[Any]) -> StateOf:
    if not isinstance(space, spaces.Discrete):
        raise SpecError("quantiser", None, f"is missing, and observations are {type(space).__name__}, not Discrete; give one")
    return DiscreteStates(space)


def discrete_actions(space: spaces.Space[Any]) -> Sequence[int]:
    if not isinstance(space, spaces.Discrete):
        raise SpecError("actions", None, f"are missing, and those of the environment are {type(space).__name__}; list some")
    return range(int(space.start), int(space.start + space.n))
