"""Killed with SIGKILL at any moment, the server goes on as if nothing had happened."""

import random
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from players import (
    AcknowledgedLossError,
    BookkeepingAgent,
    Player,
    TwoCallPlayer,
    check_books,
    check_player,
    large_policy,
    learned_signals,
    streaming_buffer,
    uninterrupted,
)
from server_process import ServerProcess, show

from safe_psrl_client import Client, RemoteAgent
from safe_psrl_client.play import play_episode
from safe_psrl_proto.v1 import admin_pb2

pytestmark = pytest.mark.slow

KILLS = 50
SNAPSHOT_EVENTS = 50  # few, so that streams are shortened between crashes too
SNAPSHOTS = f"[snapshots]\nevery_events = {SNAPSHOT_EVENTS}\n"
CARELESS = (sys.executable, str(Path(__file__).parent / "careless_server.py"))
NewServer = Callable[..., ServerProcess]


class Progress:
    """The acknowledged calls of all players, counted for whoever waits for them."""

    def __init__(self) -> None:
        self.calls = 0
        self.stopping = False
        self.silences: list[float] = []  # seconds from a kill to the next acknowledged call
        self._failure: BaseException | None = None
        self._killed_at: float | None = None
        self._changed = threading.Condition()

    def acknowledged(self) -> None:
        with self._changed:
            self.calls += 1
            if self._killed_at is not None:
                self.silences.append(time.monotonic() - self._killed_at)
                self._killed_at = None
            self._changed.notify_all()

    def kill(self, server: ServerProcess) -> None:
        began = time.monotonic()
        server.kill()
        with self._changed:
            self._killed_at = self._killed_at or began

    def keep(self, play_one: Callable[[], None]) -> None:
        """A player's thread: episode after episode, until there have been enough."""
        try:
            while not self.stopping:
                play_one()
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Until so many more calls are acknowledged."""
        with self._changed:
            goal = self.calls + more
            assert self._changed.wait_for(lambda: self.calls >= goal or self._failure, 300), "the players are stuck"
        self.raise_failure()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def kill_again_and_again(server: ServerProcess, kills: int, progress: Progress) -> None:
    """SIGKILL after random numbers of acknowledged calls, anywhere within the next ones, and sometimes while it starts."""
    chosen, pause, usual = random.Random(2026), threading.Event(), 2.0
    progress.wait_for(40)
    for _ in range(kills):
        progress.wait_for(0)
        if chosen.random() < 0.2:
            pause.wait(chosen.uniform(0.0, usual))  # it may be reading its store, or still be loading its code
        else:
            began = time.monotonic()
            server.wait_until_serving()
            usual = max(usual, time.monotonic() - began)
            progress.wait_for(chosen.randint(1, 40))
            pause.wait(chosen.uniform(0.0, 0.005))
        progress.kill(server)
        server.spawn()
    progress.wait_for(40)


def play_under_fire(server: ServerProcess, plays: Sequence[Callable[[], None]], progress: Progress, kills: int = KILLS) -> None:
    """Let all play while the server is killed so often. Returns when each has finished an episode after the last kill."""
    threads = [threading.Thread(target=progress.keep, args=(play_one,), daemon=True) for play_one in plays]
    for thread in threads:
        thread.start()
    try:
        kill_again_and_again(server, kills, progress)
    finally:
        progress.stopping = True
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    progress.raise_failure()


def two_players(server: ServerProcess, progress: Progress) -> list[Player]:
    """One that steps, and one that reports and asks; their calls share commits."""
    players = [
        Player(server, "buffer", streaming_buffer, 11, progress.acknowledged),
        TwoCallPlayer(server, "learner", learned_signals, 12, progress.acknowledged),
    ]
    for player in players:
        player.create()
    return players


def test_fifty_kills_lose_nothing_and_change_nothing(new_server: NewServer) -> None:
    """Each acknowledged transition is learned exactly once, and the actions are those of a run that was never killed."""
    server, progress = new_server(settings=SNAPSHOTS), Progress()
    server.start()
    players = two_players(server, progress)
    play_under_fire(server, [player.play_episode for player in players], progress)
    assert server.starts == KILLS + 1
    for player in players:
        check_player(player)
        stored = server.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=player.agent))
        assert stored.events < 3 * SNAPSHOT_EVENTS, "recovery would be bounded by history, not by snapshots"
    assert server.stop() == 0
    server.start()
    for player in players:
        check_player(player)
    repeats = sum(player.books.repeats for player in players)
    show(f"{KILLS} kills, {progress.calls} acknowledged calls, {repeats} of them after a commit whose reply was lost")
    show(f"without service: median {statistics.median(progress.silences):.2f} s, longest {max(progress.silences):.2f} s")


def test_an_agent_whose_policies_are_stored_apart_goes_on_too(new_server: NewServer) -> None:
    """The open episode's policy is read again after each kill; in the end there are those of the last two episodes."""
    server, progress = new_server(settings=SNAPSHOTS), Progress()
    server.start()
    player = Player(server, "large", large_policy, 13, progress.acknowledged)
    player.create()
    play_under_fire(server, [player.play_episode], progress, kills=3)
    check_player(player)
    assert server.stop() == 0
    with sqlite3.connect(server.data / "safe-psrl.db") as db:
        stored = [episode for (episode,) in db.execute("SELECT episode FROM policies ORDER BY episode")]
    db.close()
    assert len(player.books.rewards) > 1
    assert stored == [len(player.books.rewards) - 1, len(player.books.rewards)]
    server.start()
    check_player(player)


def test_the_client_library_goes_on_in_each_of_its_modes(new_server: NewServer) -> None:
    server, progress = new_server(settings=SNAPSHOTS), Progress()
    server.start()
    agents: dict[str, BookkeepingAgent] = {}
    episodes: dict[str, list[float]] = {}
    with Client(server.target, patience=300) as client, ExitStack() as open_agents:

        def playing(mode: str) -> Callable[[], None]:
            client.create_agent(mode, "streaming-buffer", seed=len(mode))
            environment = streaming_buffer()
            agent = open_agents.enter_context(RemoteAgent(client, mode, mode))
            agents[mode], episodes[mode] = BookkeepingAgent(agent, environment.spec), []

            def play_one() -> None:
                episodes[mode].append(play_episode(environment, agents[mode]).reward)
                progress.acknowledged()

            return play_one

        play_under_fire(server, [playing(mode) for mode in ("step", "stream", "local")], progress, kills=8)
        for mode, agent in agents.items():
            check_books(server, mode, agent.books, uninterrupted(streaming_buffer, len(mode), len(episodes[mode])))


@pytest.mark.parametrize("fault", ["late", "never"])
def test_the_oracle_notices_a_server_that_replies_before_it_commits(new_server: NewServer, fault: str) -> None:
    """What the test above is worth: the same play against a store that is careless fails."""
    server, progress = new_server(command=(*CARELESS, fault), settings=SNAPSHOTS), Progress()
    server.start()
    players = two_players(server, progress)
    with pytest.raises(AcknowledgedLossError) as loss:
        play_under_fire(server, [player.play_episode for player in players], progress)
    assert server.starts > 1
    show(f"{fault}: after {server.starts - 1} kills and {progress.calls} acknowledged calls: {loss.value}")


def test_a_server_that_finds_fewer_commits_than_were_acknowledged_does_not_start(new_server: NewServer) -> None:
    server = new_server(command=(*CARELESS, "never", "noted"))
    server.start()
    player = Player(server, "buffer", streaming_buffer)
    player.create()
    player.play_episode()
    server.kill()
    server.spawn()
    assert server.wait() == 2
    assert "commits behind what was acknowledged" in server.log
