"""Everything that clients and operators do to a server at a bounded rate, with a ledger of what it acknowledged."""

import random
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import pytest

from safe_psrl_client import AlreadyExistsError, Client, DeadlineExceededError, NotFoundError, RemoteAgent, UnavailableError
from safe_psrl_client.play import play_episode
from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.store.backup import copy_directory
from tests.soak.sampling import Latencies
from tests.system.players import (
    PAPERS,
    LedgerAgent,
    Player,
    TwoCallPlayer,
    check_ledger,
    check_player,
    learned_signals,
    streaming_buffer,
    uninterrupted,
)
from tests.system.server_process import ServerProcess, insist

PATIENCE: Final = 180.0
GUESTS: Final = 10  # names that come and go: a server remembers each name for ever, so they are used again
REFUSED: Final = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}

T = TypeVar("T")


class Pace:
    """Lets a thread go on `rate` times a second, and no faster after a pause."""

    def __init__(self, rate: float, stopping: threading.Event) -> None:
        self._interval = 1 / rate
        self._stopping = stopping
        self._due = time.monotonic()

    def wait(self) -> None:
        now = time.monotonic()
        self._due = max(self._due + self._interval, now - self._interval)
        if self._due > now:
            self._stopping.wait(self._due - now)


class _Timed:
    """A player whose calls are timed and paced."""

    def __init__(self, *arguments: Any, latencies: Latencies, pace: Pace) -> None:
        super().__init__(*arguments)
        self._latencies = latencies
        self._pace = pace

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        self._pace.wait()
        with self._latencies.timed():
            return super().call(method, request)  # type: ignore[misc]  # of the player that it is mixed into


class TimedPlayer(_Timed, Player):
    pass


class TimedTwoCallPlayer(_Timed, TwoCallPlayer):
    pass


class TimedAgent:
    """An agent of the client library that is paced, and timed wherever it calls the server."""

    def __init__(self, agent: RemoteAgent, latencies: Latencies, pace: Pace) -> None:
        self._agent = agent
        self._latencies = latencies
        self._pace = pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def step(self, *seen: Any) -> int | None:
        self._pace.wait()
        if self._agent.mode == "local":  # played here
            return self._agent.step(*seen)
        with self._latencies.timed():
            return self._agent.step(*seen)

    def finish(self) -> None:
        with self._latencies.timed():
            self._agent.finish()


class Load:
    """All that goes on at one server. Four players share `steps` a second: unary of two kinds, streamed, whole episodes.

    A crowd of so many agents, which play an episode one after the other, makes a quarter as many steps again.
    """

    def __init__(
        self, server: ServerProcess, latencies: Latencies, steps: float, scratch: Path, seed: int, crowd: int = 0
    ) -> None:
        self.episodes = 0
        self.guests = 0
        self.backups = 0
        self.scrapes = 0
        self._server = server
        self._latencies = latencies
        self._scratch = scratch
        self._seed = seed
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._checks: list[Callable[[], None]] = []
        self._players = [
            TimedPlayer(server, "unary", streaming_buffer, seed, latencies=latencies, pace=self._pace(steps / 4)),
            TimedTwoCallPlayer(server, "two-calls", learned_signals, seed, latencies=latencies, pace=self._pace(steps / 4)),
        ]
        pace = self._pace(steps / 4)
        self._crowd = [
            TimedPlayer(server, f"crowd-{number}", streaming_buffer, seed + number, latencies=latencies, pace=pace)
            for number in range(crowd)
        ]
        self._steps = steps
        self._threads: list[threading.Thread] = []

    # --- life

    def start(self) -> None:
        for player in self._players:
            player.create()
            self._run(partial(self._play, player))
        for player in self._crowd:
            player.create()
        if self._crowd:
            self._run(self._play_crowd)
        for mode in ("stream", "local"):
            self._run(partial(self._play_library, mode))
        for seconds, work in ((1.0, self._churn), (1.0, self._look), (20.0, self._back_up)):
            self._run(partial(self._repeat, seconds, work))

    def stop(self) -> None:
        """Let each finish what it is at."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), f"{thread.name} is stuck"
        self.raise_failure()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def check(self) -> int:
        """Raise `AcknowledgedLossError` unless everything acknowledged was learned exactly once. Returns the transitions."""
        for player in [*self._players, *self._crowd]:
            check_player(player)
        for check in self._checks:
            check()
        listed = self._server.admin.ListAgents(admin_pb2.ListAgentsRequest(), timeout=60).agents
        return sum(status.transitions for status in listed)

    # --- players

    def _play(self, player: Player) -> None:
        while not self._stopping.is_set():
            player.play_episode()
            self.episodes += 1

    def _play_crowd(self) -> None:
        """Each agent plays when all others have played since: it was loaded once more, if not all fit into memory."""
        for player in cycle(self._crowd):
            if self._stopping.is_set():
                break
            player.play_episode()
            self.episodes += 1

    def _play_library(self, mode: Any) -> None:
        with Client(self._server.target, patience=PATIENCE) as client, RemoteAgent(client, mode, mode) as agent:
            patiently(lambda: client.create_agent(mode, "streaming-buffer", options=PAPERS, seed=self._seed))
            environment = streaming_buffer()
            ledger = LedgerAgent(TimedAgent(agent, self._latencies, self._pace(self._steps / 4)), environment.spec)
            episodes = 0
            while not self._stopping.is_set():
                play_episode(environment, ledger)
                episodes += 1
                self.episodes += 1
            oracle = uninterrupted(streaming_buffer, self._seed, episodes)
            self._checks.append(lambda: check_ledger(self._server, mode, ledger.ledger, oracle))

    # --- operators

    def _churn(self) -> None:
        """An agent is created, plays, is exported, imported under another name, and both are deleted."""
        self.guests += 1
        name = f"guest-{self.guests % GUESTS}"
        copy, server = f"copy-of-{name}", self._server
        with Client(server.target, timeout=PATIENCE) as client:
            forget(client, name)
            guest = Player(server, name, streaming_buffer, self.guests)
            guest.create()
            guest.play_episode()
            check_player(guest)
            exported = patiently(lambda: client.export_agent(name))
            forget(client, copy)
            patiently(lambda: client.import_agent(copy, exported), known=AlreadyExistsError)
            digests = [patiently(lambda name=name: client.get_agent(name)).status.state_digest for name in (name, copy)]  # type: ignore[misc]
            assert digests[0] == digests[1], f"{copy} is not what was exported"
            forget(client, name)
            forget(client, copy)

    def _look(self) -> None:
        server, self.scrapes = self._server, self.scrapes + 1
        server.http("/metrics")
        server.http("/healthz")
        insist(server.admin.ListAgents, admin_pb2.ListAgentsRequest())
        insist(server.admin.GetPosterior, admin_pb2.GetPosteriorRequest(agent="unary"))
        insist(server.admin.VerifyAgent, admin_pb2.VerifyAgentRequest(agent="two-calls"))
        refused(server.control.GetAction, control_pb2.GetActionRequest(agent="nobody"))
        refused(server.control.Step, control_pb2.StepRequest(agent="unary"))
        with Client(server.target, timeout=PATIENCE) as client:
            watched = client.watch_agents(timeout=PATIENCE)
            patiently(lambda: next(watched), known=StopIteration)
            watched.close()

    def _back_up(self) -> None:
        copy = self._scratch / f"backup-{self.backups}"
        copied = copy_directory(self._server.data, copy)
        assert copied.agents >= len(self._players), "the copy lacks agents"
        shutil.rmtree(copy)
        self.backups += 1

    # --- inside

    def _pace(self, rate: float) -> Pace:
        return Pace(rate, self._stopping)

    def _repeat(self, seconds: float, work: Callable[[], None]) -> None:
        chosen = random.Random(self._seed)
        while not self._stopping.wait(seconds * chosen.uniform(0.5, 1.5)):
            work()

    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
                self._failure = self._failure or error

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()


def patiently(work: Callable[[], T], known: type[Exception] | tuple[()] = ()) -> T | None:
    """The result, however often the server goes away. `known`: what a repetition of something done may be answered."""
    until, pause = time.monotonic() + PATIENCE, threading.Event()
    while True:
        try:
            return work()
        except (UnavailableError, DeadlineExceededError):
            assert time.monotonic() < until, "the server does not come back"
        except known:
            return None
        pause.wait(0.05)


def forget(client: Client, name: str) -> None:
    patiently(lambda: client.delete_agent(name), known=NotFoundError)


def refused(method: Callable[..., Any], request: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        insist(method, request)
    assert caught.value.code() in REFUSED, caught.value
