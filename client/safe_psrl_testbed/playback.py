"""Playback buffers of media players: a network fills them, playback takes whole media units at the paper's rate."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl_testbed.kernels import DEPARTURE

LARGEST_STATE: Final = 9  # of the streaming buffer's ten


def quantised(levels: ArrayLike) -> NDArray[np.int64]:
    """The agents' states: whole media units in the buffer. 0: playback stalls."""
    return np.clip(np.floor(np.asarray(levels, np.float64)), 0, LARGEST_STATE).astype(np.int64)


class PlaybackBuffers:
    """Buffers of several players, up to nine media units each. An epoch plays one with the paper's probability.

    The same seed gives the same playback events, whatever arrives, so that policies are comparable.
    """

    def __init__(self, players: int, seed: int) -> None:
        self.levels = np.zeros(players)  # in media units, parts of one included
        self._generator = np.random.default_rng([seed, 0])

    @property
    def states(self) -> NDArray[np.int64]:
        return quantised(self.levels)

    def empty(self) -> NDArray[np.int64]:
        """Every player begins another clip; the states, all 0."""
        self.levels = np.zeros(len(self.levels))
        return self.states

    def advance(self, received: ArrayLike) -> NDArray[np.int64]:
        """An epoch in which so many media units arrived; the next states."""
        plays = self._generator.random(len(self.levels)) < DEPARTURE
        levels = self.levels + np.asarray(received, np.float64)
        levels -= plays & (levels >= 1.0)
        self.levels = np.minimum(levels, LARGEST_STATE)  # the excess is lost
        return self.states
