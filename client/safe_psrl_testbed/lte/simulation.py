"""The cell played by agents of a service, and beside it the same cell played by fixed rules."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from safe_psrl.problem.documents import spec_to_document
from safe_psrl_client import Client, spec_from_document
from safe_psrl_client.sync.retry import DEFAULT_PATIENCE
from safe_psrl_testbed.books import BUDGET, SPEC, Books, account, best_within_budget
from safe_psrl_testbed.lte.bindings import require_ns3
from safe_psrl_testbed.lte.cell import MediaCell
from safe_psrl_testbed.lte.kernel import kernel_rows
from safe_psrl_testbed.lte.network_process import NetworkProcess
from safe_psrl_testbed.lte.policies import FixedRule, Policy, ServedAgents
from safe_psrl_testbed.lte.settings import CellSettings
from safe_psrl_testbed.rules import RULES
from safe_psrl_testbed.simulation import prepare_agent

LEARNED: Final = "learned"


class LteSimulation:
    """Every UE an agent called `name`-1, `name`-2, …, or with `shared` one agent called `name` for all.

    Each policy has a network of its own with the same seed: the same walks, fading, background bursts and moments of playback.
    """

    def __init__(
        self,
        settings: CellSettings,
        target: str,
        name: str,
        episodes: int,
        *,
        shared: bool = False,
        method: str = "adaptive",
        compare: bool = True,
        jobs: int = 1,
        patience: float = DEFAULT_PATIENCE,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
    ) -> None:
        require_ns3()
        self.settings = settings
        self.episodes = episodes
        self.method = method
        self.names = [name] * settings.ues if shared else [f"{name}-{i + 1}" for i in range(settings.ues)]
        self.books = {policy: Books(settings.ues) for policy in [LEARNED, *(RULES if compare else ())]}
        self._jobs = jobs
        self._client = partial(Client, target, patience=patience, credentials=credentials, token=token)
        self._stopping = threading.Event()
        self._interrupted = False
        self._seconds = 0.0

    def prepare(self) -> None:
        """See that every agent exists and is for this problem; create those that are missing."""
        definition = spec_from_document(spec_to_document(SPEC))
        definition.options.method = self.method
        definition.max_open_episodes = self.names.count(self.names[0])
        with self._client() as client:
            for i, name in enumerate(dict.fromkeys(self.names)):
                definition.seed = self.settings.seed + i
                prepare_agent(client, name, definition, "lte-cell")

    def run(self, on_episode: Callable[[str], object] = lambda _: None) -> None:
        """Play all policies. Ctrl-C stops it gently; the first error stops it and is raised."""
        began = time.monotonic()
        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="lte-cell")
        played: list[Future[None]] = []
        try:
            played = [pool.submit(self._play, policy, partial(on_episode, policy)) for policy in self.books]
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
        with NetworkProcess(self.settings) as network:
            cell = MediaCell(network, self.settings.ues, self.settings.seed)
            play: Callable[[Policy], None] = partial(
                cell.play, books=self.books[policy], episodes=self.episodes, stopping=self._stopping, on_episode=on_episode
            )
            if policy != LEARNED:
                play(FixedRule(RULES[policy]))
                return
            with self._client() as client, ServedAgents(client, self.names) as agents:
                play(agents)

    def agents_constraint_regret(self) -> NDArray[np.float64]:
        """[E, agents]: the cost above the budget of all episodes of an agent, summed up to each round of episodes."""
        regret = self.books[LEARNED].constraint_regret
        owners = np.unique(self.names, return_inverse=True)[1]
        return np.stack([regret[:, owners == agent].sum(axis=1) for agent in range(owners.max() + 1)], axis=1)

    def summary(self) -> dict[str, Any]:
        """What was done so far, as plain values."""
        policies = {name: account(books) for name, books in self.books.items() if books.episodes}
        episodes = sum(books.episodes for books in self.books.values())
        simulated = episodes * SPEC.horizon * self.settings.epoch_ms / 1000
        regret = self.agents_constraint_regret()
        fixed = {name: policy for name, policy in policies.items() if name != LEARNED}
        return {
            "scenario": "lte-cell",
            "ues": self.settings.ues,
            "agents": list(dict.fromkeys(self.names)),
            "method": self.method,
            "seed": self.settings.seed,
            "epoch_ms": self.settings.epoch_ms,
            "horizon": SPEC.horizon,
            "cost_budget": BUDGET,
            "interrupted": self._interrupted,
            "episodes": self.books[LEARNED].episodes,
            "seconds": self._seconds,
            "simulated_seconds": simulated,
            "agents_constraint_regret": float(regret[-1].max()) if len(regret) else 0.0,
            "agents_constraint_regret_max": float(regret.max()) if len(regret) else 0.0,
            "policies": policies,
            "best_fixed_within_budget": best_within_budget(fixed),
            "kernel": kernel_rows(self.books[LEARNED].transition_counts),
        }
