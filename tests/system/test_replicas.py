"""Three replicas on one database behind a front: killed, stopped and continued, the database restarted, without loss.

SAFE_PSRL_FAULT_ROUNDS sets the number of faults; the suite has a few.
"""

import os
import random
import signal
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from safe_psrl_proto.v1 import control_pb2
from tests.system.front import Front
from tests.system.players import Player, TwoCallPlayer, check_player, in_threads, learned_signals, streaming_buffer
from tests.system.postgres_process import PostgresProcess
from tests.system.server_process import NewServer, ServerProcess, show, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("SAFE_PSRL_FAULT_ROUNDS", "3"))
# What is shipped; the other one if rounds are asked for. In tests/faults clients call any replica, without a front.
POLICIES = ["RING_HASH", "ROUND_ROBIN"] if "SAFE_PSRL_FAULT_ROUNDS" in os.environ else ["RING_HASH"]
REPLICAS = 3
STOPPED_SECONDS = 14.0  # longer than the time of a statement, of an idle transaction, of a connect and of a health check
SETTINGS = "refresh_seconds = 1.0\n[snapshots]\nevery_events = 50\n"
NewService = Callable[..., "Service"]


class Service:
    """Replicas, their database, and the front."""

    def __init__(self, postgres: PostgresProcess, replicas: list[ServerProcess], front: Front) -> None:
        self.postgres, self.replicas, self.front = postgres, replicas, front

    def kill_replica(self, chosen: random.Random) -> None:
        """SIGKILL, and another process takes its place."""
        replica = chosen.choice(self.replicas)
        replica.kill()
        replica.spawn()
        replica.wait_until_serving()

    def stop_replica(self, chosen: random.Random) -> None:
        """SIGSTOP in the midst of calls; when it goes on, the others have long answered them."""
        replica = chosen.choice(self.replicas)
        replica.signal(signal.SIGSTOP)
        threading.Event().wait(STOPPED_SECONDS)
        replica.signal(signal.SIGCONT)
        replica.wait_until_serving()

    def restart_database(self, chosen: random.Random) -> None:
        """As an operator does, or as after a crash."""
        self.postgres.stop(chosen.choice([signal.SIGINT, signal.SIGQUIT]))
        self.postgres.start()


class Witness:
    """Sees the acknowledged calls of all players."""

    def __init__(self) -> None:
        self.calls = 0
        self.stopping = False
        self.failure: BaseException | None = None
        self._last: dict[str, float] = {}
        self._longest: dict[str, float] = defaultdict(float)

    def acknowledged(self, agent: str) -> None:
        now = time.monotonic()
        self._longest[agent] = max(self._longest[agent], now - self._last.get(agent, now))
        self._last[agent] = now
        self.calls += 1

    def stop(self) -> None:
        self.stopping = True

    def play(self, player: Player) -> None:
        try:
            while not self.stopping:
                player.play_episode()
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            self.failure = self.failure or error

    def wait_for_all(self, players: list[Player], calls: int) -> None:
        """Until each player had so many more calls acknowledged."""
        goals = {player.agent: len(player.ledger.actions) + calls for player in players}

        def done() -> bool:
            if self.failure is not None:
                raise self.failure
            return all(len(player.ledger.actions) >= goals[player.agent] for player in players)

        wait_until(done, 300, "every player goes on")

    def silence(self) -> float:
        """The longest time that any player waited since this was asked last."""
        longest = max(self._longest.values(), default=0.0)
        self._longest.clear()
        return longest


class DoubtfulPlayer(TwoCallPlayer):
    """Repeats every call: different replicas answer, and must give the same reply."""

    def report(self, episode: int, step: int, transition: control_pb2.Transition) -> int:
        action = super().report(episode, step, transition)
        again = control_pb2.ReportTransitionRequest(agent=self.agent, episode=episode, step=step, transition=transition)
        reply = self.call(self.server.control.ReportTransition, again)
        self.check(reply.duplicate, "a step was entered twice")
        if not reply.episode_done:
            question = control_pb2.GetActionRequest(
                agent=self.agent, state=transition.next_state, episode=episode, step=step + 1
            )
            told = self.call(self.server.control.GetAction, question).action
            self.check(told == action, "two different actions were given for one step")
        return action


@pytest.fixture
def new_service(new_server: NewServer, tmp_path: Path) -> Iterator[NewService]:
    """`new_service(policy)`, started. Its end is the end of all its processes."""
    ends: list[Callable[[], None]] = []

    def make(policy: str, **settings: object) -> Service:
        postgres = PostgresProcess()
        postgres.__enter__()
        ends.append(postgres.__exit__)
        replicas = [new_server(settings=SETTINGS, **settings) for _ in range(REPLICAS)]
        for replica in replicas:
            replica.store = postgres.address
            replica.spawn()
        for replica in replicas:
            replica.wait_until_serving()
            ends.append(replica.kill)
        front = Front(tmp_path / "front", [replica.target for replica in replicas], policy)
        ends.append(front.close)
        front.start()
        return Service(postgres, replicas, front)

    yield make
    for end in reversed(ends):
        end()


def players_of(service: Service, witness: Witness) -> list[Player]:
    kinds = (Player, TwoCallPlayer, DoubtfulPlayer, Player)
    players = [
        kind(
            service.front,  # type: ignore[arg-type]  # it has the stubs that players use
            f"agent-{i}",
            learned_signals if i % 2 else streaming_buffer,
            20 + i,
            lambda i=i: witness.acknowledged(f"agent-{i}"),  # type: ignore[misc]
        )
        for i, kind in enumerate(kinds)
    ]
    for player in players:
        player.create()
    return players


def play_through(service: Service, players: list[Player], witness: Witness, rounds: int) -> dict[str, list[float]]:
    """Let all play while there are so many faults, and check what they learned. The times without service, by kind of fault."""
    chosen, silences = random.Random(2026), defaultdict(list)
    with in_threads(witness.play, players, witness.stop):
        witness.wait_for_all(players, 30)
        for number in range(rounds):
            faults = (service.stop_replica, service.kill_replica, service.restart_database)
            fault = faults[number % 3]
            witness.silence()
            fault(chosen)
            witness.wait_for_all(players, 10)
            silences[fault.__name__].append(witness.silence())
    if witness.failure is not None:
        raise witness.failure
    for player in players:
        check_player(player)
    return silences


@pytest.mark.parametrize("policy", POLICIES)
def test_no_fault_loses_or_changes_anything(new_service: NewService, policy: str) -> None:
    """Each acknowledged step is learned exactly once, every action is that of an uninterrupted run, and service resumes."""
    service, witness = new_service(policy), Witness()
    players = players_of(service, witness)
    silences = play_through(service, players, witness, ROUNDS)
    repeats = sum(player.ledger.repeats for player in players)
    show(f"{policy}: {ROUNDS} faults, {witness.calls} acknowledged calls, {repeats} repeated after a lost reply")
    for fault, seconds in silences.items():
        show(f"{fault}: an agent without service for {statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s at most")
