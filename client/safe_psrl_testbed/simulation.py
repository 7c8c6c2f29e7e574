"""Simulated environments played against the agents of a service, several at a time, with their results."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

import grpc

from safe_psrl.problem.documents import spec_to_document
from safe_psrl_client import Client, InvalidArgumentError, Mode, NotFoundError, spec_from_document
from safe_psrl_client.sync.retry import DEFAULT_PATIENCE
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_testbed.player import Player
from safe_psrl_testbed.scenario import Scenario

GRACE_SECONDS: Final = 3.0  # for current episodes when the simulation is stopped


class Simulation:
    """`parallel` agents called `name`-1, `name`-2, … (one is just `name`), each with its own environment and client.

    Agent i and its environment have the seed `seed` + i - 1. With `create`, `prepare` creates agents that are missing.
    """

    def __init__(
        self,
        scenario: Scenario,
        target: str,
        name: str,
        episodes: int,
        *,
        parallel: int = 1,
        mode: Mode = "step",
        seed: int = 1,
        create: bool = True,
        patience: float = DEFAULT_PATIENCE,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
    ) -> None:
        names = [name] if parallel == 1 else [f"{name}-{i + 1}" for i in range(parallel)]
        self.scenario = scenario
        self.episodes = episodes
        self.mode = mode
        self._client = partial(Client, target, patience=patience, credentials=credentials, token=token)
        self._players = [Player(scenario, agent, mode, seed + i) for i, agent in enumerate(names)]
        self._create = create
        self._stopping = threading.Event()
        self._interrupted = False
        self._seconds = 0.0

    def prepare(self) -> None:
        """Check that every agent exists and is for this problem; create those that are missing."""
        definition = spec_from_document(spec_to_document(self.scenario.spec))
        with self._client() as client:
            for player in self._players:
                definition.seed = player.seed
                prepare_agent(client, player.name, definition, self.scenario.name, create=self._create)

    def run(self, on_episode: Callable[[], object] = lambda: None) -> None:
        """Play. Ctrl-C stops after the current episodes; the first error stops all and is raised."""
        clients = [self._client() for _ in self._players]
        began = time.monotonic()
        pool = ThreadPoolExecutor(len(self._players), thread_name_prefix="simulation")
        played: list[Future[None]] = []
        try:
            played = [
                pool.submit(player.play, client, self.episodes, self._stopping, on_episode)
                for player, client in zip(self._players, clients, strict=True)
            ]
            wait(played, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            self._interrupted = True
        finally:
            self._stopping.set()
            wait(played, timeout=GRACE_SECONDS)
            self._seconds = time.monotonic() - began
            for client in clients:
                client.close()
            pool.shutdown()
        for future in played:
            future.result()

    def summary(self) -> dict[str, Any]:
        """The results so far, as plain values."""
        episodes = sum(player.episodes for player in self._players)
        return {
            "environment": self.scenario.name,
            "mode": self.mode,
            "regret": "exact" if self.mode == "local" else "realised",
            "interrupted": self._interrupted,
            "episodes": episodes,
            "seconds": self._seconds,
            "episodes_per_second": episodes / self._seconds if self._seconds else 0.0,
            "agents": [player.summary() for player in self._players],
        }


def prepare_agent(client: Client, name: str, definition: model_pb2.AgentSpec, problem: str, *, create: bool = True) -> None:
    """Check that the agent `name` exists and is for this problem; with `create`, create it if it is missing."""
    try:
        found = client.get_agent(name, with_spec=True).spec
    except NotFoundError:
        if not create:
            raise
        client.create_agent(name, definition)
        return
    theirs, ours = _shape(found.cmdp), _shape(definition.cmdp)
    if theirs != ours:
        raise InvalidArgumentError(
            f"agent {name} is not for {problem}: its states, actions, horizon and "
            f"constraints are {theirs}, not {ours}; choose another --agent"
        )
    if found.max_open_episodes < definition.max_open_episodes:
        raise InvalidArgumentError(
            f"agent {name} allows {found.max_open_episodes} open episodes, but {definition.max_open_episodes} "
            "are needed; choose another --agent"
        )


def _shape(cmdp: model_pb2.CmdpSpec) -> tuple[int, int, int, int]:
    return cmdp.num_states, cmdp.num_actions, cmdp.horizon, len(cmdp.constraints)
