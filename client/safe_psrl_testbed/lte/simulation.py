"""The LTE cell under the agents of a service, and the same cell under fixed rules."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl_client import Client
from safe_psrl_testbed.kernels import streaming_buffer
from safe_psrl_testbed.lte.bindings import require_ns3
from safe_psrl_testbed.lte.network_process import NetworkProcess
from safe_psrl_testbed.lte.settings import CellSettings
from safe_psrl_testbed.media import LEARNED, RULES, SPEC, MediaSimulation
from safe_psrl_testbed.media_players import FixedRule, MediaPlayers, Policy, ServedAgents


class LteSimulation(MediaSimulation):
    """An agent `name`-1, `name`-2, … for every UE, or with `shared` one agent `name` for all.

    Each policy has its own network with the same seed: the same walks, fading, background bursts and playback.
    """

    def __init__(
        self,
        settings: CellSettings,
        target: str,
        name: str,
        episodes: int,
        *,
        shared: bool = False,
        jobs: int = 1,
        **options: Any,
    ) -> None:
        """options: those of `MediaSimulation`."""
        require_ns3()
        names = [name] * settings.ues if shared else [f"{name}-{i + 1}" for i in range(settings.ues)]
        sharing = settings.ues if shared else 1
        super().__init__("lte-cell", names, settings.ues, settings.seed, target, episodes, open_episodes=sharing, **options)
        self.settings = settings
        self._jobs = jobs
        self._stopping = threading.Event()

    def run(self, on_episode: Callable[[str], object] = lambda _: None) -> None:
        """Play all policies. Ctrl-C stops after the current episodes; the first error stops all and is raised."""
        began = time.monotonic()
        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="lte-cell")
        played: list[Future[None]] = []
        try:
            played = [pool.submit(self._play, policy, partial(on_episode, policy)) for policy in self.histories]
            wait(played, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            self._interrupted = True
        finally:
            self._stopping.set()
            pool.shutdown(cancel_futures=True)
            self._seconds = time.monotonic() - began
        for future in played:
            if not future.cancelled():
                future.result()

    def _play(self, policy: str, on_episode: Callable[[], object]) -> None:
        with closing(NetworkProcess(self.settings)) as network:
            players = MediaPlayers(network, self.settings.ues, self.settings.seed)
            play: Callable[[Policy], None] = partial(
                players.play,
                history=self.histories[policy],
                episodes=self.episodes,
                stopping=self._stopping,
                on_episode=on_episode,
            )
            if policy != LEARNED:
                play(FixedRule(RULES[policy]))
                return
            with Client(self._target, **self._connection) as client, closing(ServedAgents(client, self.names)) as agents:
                play(agents)

    def agents_constraint_regret(self) -> NDArray[np.float64]:
        """[E, agents]: the cost above the budget of all episodes of an agent, summed up to each round of episodes."""
        regret = self.histories[LEARNED].constraint_regret
        owners = np.unique(self.names, return_inverse=True)[1]
        return np.stack([regret[:, owners == agent].sum(axis=1) for agent in range(owners.max() + 1)], axis=1)

    def summary(self) -> dict[str, Any]:
        episodes = sum(history.episodes for history in self.histories.values())
        return super().summary() | {
            "ues": self.settings.ues,
            "agents": list(dict.fromkeys(self.names)),
            "epoch_ms": self.settings.epoch_ms,
            "simulated_seconds": episodes * SPEC.horizon * self.settings.epoch_ms / 1000,
            "kernel": kernel_rows(self.histories[LEARNED].transition_counts),
        }


SERVICES: Final = ("fast", "slow")
MOVES: Final = ("down", "stay", "up", "up more")


def kernel_rows(counts: NDArray[np.int64]) -> list[dict[str, Any]]:
    """For each service, where the buffer is empty and where it is not. States are weighted by their visits."""
    ideal = streaming_buffer()
    return [
        {
            "service": name,
            "buffer": where,
            "seen": int(counts[states, action].sum()),
            "cell": _moves(counts[states, action], states.start),
            "paper": _moves(ideal[states, action] * counts[states, action].sum(axis=1)[:, None], states.start),
        }
        for action, name in enumerate(SERVICES)
        for where, states in (("empty", slice(0, 1)), ("not empty", slice(1, len(counts))))
    ]


def _moves(weights: NDArray[Any], first: int) -> dict[str, float]:
    """The shares of moves down, none, up by one, and up by more, of rows from state `first` on; 0 without visits."""
    sums = np.zeros(len(MOVES))
    for i, row in enumerate(weights):
        np.add.at(sums, np.clip(np.arange(len(row)) - (first + i), -1, 2) + 1, row)
    shares = sums / sums.sum() if sums.any() else sums
    return dict(zip(MOVES, shares.tolist(), strict=True))
