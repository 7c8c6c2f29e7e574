"""Episodes of a cell: all UEs begin a clip with an empty buffer, and get a service for each epoch until the horizon."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from safe_psrl_testbed.lte.network_process import Network
from safe_psrl_testbed.lte.policies import Policy
from safe_psrl_testbed.media import FAST, SPEC, MediaHistory
from safe_psrl_testbed.playback import PlaybackBuffers


class MediaCell:
    """The players of all UEs, behind one network."""

    def __init__(self, network: Network, ues: int, seed: int) -> None:
        self._network = network
        self._buffers = PlaybackBuffers(ues, seed)

    def empty(self) -> NDArray[np.int64]:
        return self._buffers.empty()

    def advance(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """An epoch; the next states."""
        return self._buffers.advance(self._network.advance((actions == FAST).tolist()))

    def play(
        self, policy: Policy, history: MediaHistory, episodes: int, stopping: threading.Event, on_episode: Callable[[], object]
    ) -> None:
        """Play until `history` has that many episodes, or until `stopping`."""
        while history.episodes < episodes and not stopping.is_set():
            states = [self.empty()]
            actions = [policy.begin(states[0])]
            for _ in range(SPEC.horizon):
                states.append(self.advance(actions[-1]))
                actions.append(policy.step(states[-2], actions[-1], states[-1]))
            history.append(states, actions[:-1])
            on_episode()
