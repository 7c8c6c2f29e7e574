"""The LTE cell under the agents of a service, and the same cell under fixed rules."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl_client import Client
from safe_psrl_testbed.kernels import streaming_buffer
from safe_psrl_testbed.lte.bindings import require_ns3
from safe_psrl_testbed.lte.network_process import NetworkProcess
from safe_psrl_testbed.lte.settings import CellSettings
from safe_psrl_testbed.media import LEARNED, RULES, SHADOW, SPEC, MediaHistory, MediaSimulation
from safe_psrl_testbed.media_players import FixedRule, MediaPlayers, Policy, ServedAgents


class Shadow(NamedTuple):
    """The first `episodes`, in which the fixed rule `rule` acts and the agents watch."""

    rule: str
    episodes: int


class LteSimulation(MediaSimulation):
    """An agent `name`-1, `name`-2, … for every UE, or with `shared` one agent `name` for all.

    Each policy has its own network with the same seed: the same walks, fading, background bursts and playback. With `shadow`
    the agents begin in shadow and are promoted after it, whatever the verdict. A `continuing` task cannot be shared: it has one
    course.
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
        shadow: Shadow | None = None,
        **options: Any,
    ) -> None:
        """options: those of `MediaSimulation`."""
        require_ns3()
        names = [name] * settings.ues if shared else [f"{name}-{i + 1}" for i in range(settings.ues)]
        sharing = settings.ues if shared else 1
        mode = "live" if shadow is None else "shadow"
        world = ("lte-cell", names, settings.ues, settings.seed, target, episodes)
        super().__init__(*world, open_episodes=sharing, mode=mode, **options)
        self.settings = settings
        self.shadow = shadow
        self.watched = MediaHistory(settings.ues)  # of the rule in charge
        self._verdicts: dict[str, str] = {}  # of promotions, by agent
        self._jobs = jobs
        self._stopping = threading.Event()
        self._detections = 0  # of drift, by all agents

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
            players = MediaPlayers(network, self.settings.ues, self.settings.seed, continuing=self.continuing)
            play: Callable[[Policy, MediaHistory, int], None] = partial(
                players.play, stopping=self._stopping, on_episode=on_episode
            )
            if policy != LEARNED:
                play(FixedRule(RULES[policy]), self.histories[policy], self.episodes)
                return
            with Client(self._target, **self._connection) as client:
                live = self.episodes
                if self.shadow is not None:
                    self._watch(client, self.shadow, play)
                    live -= self.shadow.episodes
                with closing(ServedAgents(client, self.names)) as agents:
                    play(agents, self.histories[LEARNED], live)
                statuses = [client.get_agent(name).status for name in dict.fromkeys(self.names)]
                self._detections = sum(status.drift_detections for status in statuses)

    def _watch(self, client: Client, shadow: Shadow, play: Callable[[Policy, MediaHistory, int], None]) -> None:
        """The rule acts, and the agents learn; then they are promoted."""
        with closing(ServedAgents(client, self.names, RULES[shadow.rule])) as agents:
            play(agents, self.watched, shadow.episodes)
        if self._stopping.is_set():
            return
        for name in dict.fromkeys(self.names):
            self._verdicts[name] = client.compare_agent(name).verdict_text
            client.promote(name, f"simulated: {shadow.episodes} episodes beside {shadow.rule}", force=True)

    def agents_constraint_regret(self) -> NDArray[np.float64]:
        """[E, agents]: the cost above the budget of all episodes of an agent, summed up to each round of episodes."""
        regret = self.histories[LEARNED].constraint_regret
        owners = np.unique(self.names, return_inverse=True)[1]
        return np.stack([regret[:, owners == agent].sum(axis=1) for agent in range(owners.max() + 1)], axis=1)

    def summary(self) -> dict[str, Any]:
        summary = super().summary()
        if self.shadow is not None:
            summary["policies"] |= {SHADOW: self.watched.summary()} if self.watched.episodes else {}
            summary["shadow"] = {**self.shadow._asdict(), "verdicts": self._verdicts}
        episodes = self.watched.episodes + sum(history.episodes for history in self.histories.values())
        return summary | {
            "episodes": self.watched.episodes + self.histories[LEARNED].episodes,
            "ues": self.settings.ues,
            "agents": list(dict.fromkeys(self.names)),
            "epoch_ms": self.settings.epoch_ms,
            "joining_ues": self.settings.joining_ues,
            "joining_episode": self.settings.joining_epoch // SPEC.horizon,
            "drift_detections": self._detections,
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
