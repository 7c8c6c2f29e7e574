"""Three replicas behind Envoy are exchanged one after the other under load, as an upgrade does: no call fails."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from safe_psrl_client import Client, RemoteAgent
from safe_psrl_client.play import play_episode
from tests.system.front import Front
from tests.system.players import (
    PAPERS,
    LedgerAgent,
    Player,
    check_ledger,
    check_player,
    in_threads,
    streaming_buffer,
    uninterrupted,
)
from tests.system.postgres_process import PostgresProcess
from tests.system.server_process import GONE, NOT_SERVING, SERVING, NewServer, ServerProcess, show
from tests.system.test_crash import Progress

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REPLICAS = 3
MODES = ("step", "stream", "local") * 2
BETWEEN = 200  # acknowledged calls before and after each exchange


class BarePlayer(Player):
    """Calls Envoy without the client library, and counts what that would have retried."""

    unavailable = 0

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        def counted(*arguments: Any, **how: Any) -> Any:
            try:
                return method(*arguments, **how)
            except grpc.RpcError as error:
                self.unavailable += error.code() in GONE
                raise

        return super().call(counted, request)


class LibraryPlayer:
    """An agent of the client library. A call that fails, after the retries of the library, ends the test."""

    def __init__(self, client: Client, name: str, mode: Any, seed: int, progress: Progress) -> None:
        client.create_agent(name, "streaming-buffer", options=PAPERS, seed=seed)
        self.name, self.seed, self.episodes = name, seed, 0
        self.remote = RemoteAgent(client, name, mode)
        self._environment, self._progress = streaming_buffer(), progress
        self._agent = LedgerAgent(self.remote, self._environment.spec)

    def play_episode(self) -> None:
        play_episode(self._environment, self._agent)
        self.episodes += 1
        for _ in range(self._environment.spec.horizon):
            self._progress.acknowledged()

    def check(self, front: Front) -> None:
        oracle = uninterrupted(streaming_buffer, self.seed, self.episodes)
        check_ledger(front, self.name, self._agent.ledger, oracle)  # type: ignore[arg-type]  # it has the stubs


class Replicas:
    """Three that serve and one in reserve, all of which the front knows."""

    def __init__(self, servers: list[ServerProcess], front: Front) -> None:
        self.front = front
        *self.serving, self._reserve = servers

    def exchange(self, number: int) -> float:
        """Start another replica, wait until it is ready, then stop one; returns the seconds that this took."""
        began, old, new = time.monotonic(), self.serving[number], self._reserve
        new.start()
        health = old.health.Watch(health_pb2.HealthCheckRequest())
        assert next(health).status == SERVING
        old.signal(signal.SIGTERM)
        assert next(health).status == NOT_SERVING
        assert old.wait() == 0
        self.serving[number], self._reserve = new, old
        return time.monotonic() - began


@pytest.fixture
def replicas(new_server: NewServer, tmp_path: Path) -> Iterator[Replicas]:
    with PostgresProcess() as postgres, ExitStack() as ends:
        servers = [new_server() for _ in range(REPLICAS + 1)]
        for server in servers:
            server.store = postgres.address
            ends.callback(server.kill)
        for server in servers[:REPLICAS]:
            server.spawn()
        for server in servers[:REPLICAS]:
            server.wait_until_serving()
        front = Front(tmp_path / "front", [server.target for server in servers])
        ends.callback(front.close)
        front.start()
        yield Replicas(servers, front)


def test_an_exchange_fails_no_call_and_loses_and_doubles_nothing(replicas: Replicas) -> None:
    front, progress, chosen = replicas.front, Progress(), random.Random(2026)
    bare = BarePlayer(front, "bare", streaming_buffer, 9, progress.acknowledged)  # type: ignore[arg-type]  # the same
    bare.create()
    before = [server.running.pid for server in replicas.serving]
    with Client(front.target) as client, ExitStack() as open_agents:
        players = [LibraryPlayer(client, f"agent-{i}", mode, i, progress) for i, mode in enumerate(MODES)]
        for player in players:
            open_agents.enter_context(player.remote)
        with in_threads(progress.keep, [bare.play_episode, *(player.play_episode for player in players)], progress.stop):
            progress.wait_for(BETWEEN)
            seconds = []
            for number in chosen.sample(range(REPLICAS), REPLICAS):
                seconds.append(replicas.exchange(number))
                progress.wait_for(BETWEEN)
        progress.raise_failure()
        for player in players:
            player.check(front)
    check_player(bare)
    assert not {server.running.pid for server in replicas.serving} & set(before)
    took = ", ".join(f"{each:.1f}" for each in seconds)
    show(f"{REPLICAS} replicas exchanged in {took} s; {progress.calls} acknowledged calls")
    show(f"0 failed through the client library; without it {bare.unavailable} of {len(bare.ledger.actions)} steps were retried")
