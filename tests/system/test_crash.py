"""Killed with SIGKILL at any moment, the server goes on, and the client library with it. Raw calls: see tests/faults."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict

import pytest

from safe_psrl import ContinuingPsrl, DriftOptions, SafePsrl, SafePsrlOptions, Transition, act, preset
from safe_psrl.problem.documents import spec_to_document
from safe_psrl_client import Client, RemoteAgent, spec_from_document
from safe_psrl_client.play import play_episode, play_steps
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_testbed import scenario_named
from safe_psrl_testbed.environment import TabularEnvironment
from tests.system.players import (
    PAPERS,
    LedgerAgent,
    Player,
    check_ledger,
    check_player,
    in_threads,
    large_policy,
    streaming_buffer,
    uninterrupted,
)
from tests.system.server_process import NewServer, ServerProcess

pytestmark = pytest.mark.slow

KILLS = 8
EPOCH_KILLS = 50  # at the boundaries of epochs
SNAPSHOTS = "[snapshots]\nevery_events = 50\n"  # few, so that streams are shortened between crashes too


class Progress:
    """The acknowledged calls of all players, counted for threads that wait for them."""

    def __init__(self) -> None:
        self.calls = 0
        self.stopping = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def acknowledged(self) -> None:
        with self._changed:
            self.calls += 1
            self._changed.notify_all()

    def stop(self) -> None:
        self.stopping = True

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


def kill_again_and_again(server: ServerProcess, progress: Progress, kills: int, while_starting: float) -> None:
    """SIGKILL after random numbers of acknowledged calls, anywhere within the next ones, and with a chance while it starts."""
    chosen, pause, usual = random.Random(2026), threading.Event(), 2.0
    progress.wait_for(40)
    for _ in range(kills):
        progress.wait_for(0)
        if chosen.random() < while_starting:
            pause.wait(chosen.uniform(0.0, usual))  # it may be reading its store, or still be loading its code
        else:
            began = time.monotonic()
            server.wait_until_serving()
            usual = max(usual, time.monotonic() - began)
            progress.wait_for(chosen.randint(1, 40))
            pause.wait(chosen.uniform(0.0, 0.005))
        server.kill()
        server.spawn()
    progress.wait_for(40)


def play_under_fire(
    server: ServerProcess,
    plays: Sequence[Callable[[], None]],
    progress: Progress,
    kills: int = KILLS,
    while_starting: float = 0.2,
) -> None:
    """Let all play while the server is killed so often. Returns when each has finished an episode after the last kill."""
    with in_threads(progress.keep, plays, progress.stop):
        kill_again_and_again(server, progress, kills, while_starting)
    progress.raise_failure()


def test_an_agent_whose_policies_are_stored_apart_goes_on_too(started_server: NewServer) -> None:
    """The open episode's policy is read again after each kill; in the end there are those of the last two episodes."""
    server, progress = started_server(settings=SNAPSHOTS), Progress()
    player = Player(server, "large", large_policy, 13, progress.acknowledged)
    player.create()
    play_under_fire(server, [player.play_episode], progress, kills=3)
    check_player(player)
    assert server.stop() == 0
    with sqlite3.connect(server.data / "safe-psrl.db") as db:
        stored = [episode for (episode,) in db.execute("SELECT episode FROM policies ORDER BY episode")]
    db.close()
    assert len(player.ledger.rewards) > 1
    assert stored == [len(player.ledger.rewards) - 1, len(player.ledger.rewards)]
    server.start()
    check_player(player)


def test_the_client_library_goes_on_in_each_of_its_modes(started_server: NewServer) -> None:
    server, progress = started_server(settings=SNAPSHOTS), Progress()
    agents: dict[str, LedgerAgent] = {}
    episodes: dict[str, list[float]] = {}
    with Client(server.target, patience=300) as client, ExitStack() as open_agents:

        def playing(mode: str) -> Callable[[], None]:
            client.create_agent(mode, "streaming-buffer", options=PAPERS, seed=len(mode))
            environment = streaming_buffer()
            agent = open_agents.enter_context(RemoteAgent(client, mode, mode))
            agents[mode], episodes[mode] = LedgerAgent(agent, environment.spec), []

            def play_one() -> None:
                episodes[mode].append(play_episode(environment, agents[mode]).reward)
                progress.acknowledged()

            return play_one

        play_under_fire(server, [playing(mode) for mode in ("step", "stream", "local")], progress)
        for mode, agent in agents.items():
            check_ledger(server, mode, agent.ledger, uninterrupted(streaming_buffer, len(mode), len(episodes[mode])))


def test_a_continuing_task_goes_on_across_epochs(started_server: NewServer) -> None:
    """Each step ends an epoch and starts the next one, so every kill falls on a boundary: nothing is lost or doubled."""
    server, progress = started_server(settings='warm_up = "published"\n' + SNAPSHOTS), Progress()
    scenario = scenario_named("continuing-buffer")
    spec = spec_from_document(spec_to_document(scenario.spec))
    spec.max_epoch_steps, spec.seed = 1, 5
    spec.options.CopyFrom(PAPERS)
    with Client(server.target, patience=300) as client:
        client.create_agent("endless", spec)
        with RemoteAgent(client, "endless") as agent:
            player = LedgerAgent(agent, scenario.spec)
            steps = play_steps(scenario.environment(1), player)

            def play_one() -> None:
                next(steps)
                progress.acknowledged()

            play_under_fire(server, [play_one], progress, kills=EPOCH_KILLS, while_starting=0.0)
            steps.close()
        status, counts = client.get_agent("endless").status, client.get_posterior("endless").counts
        assert client.verify_agent("endless").ok
    played, oracle = progress.calls, scenario.environment(1)
    learner = ContinuingPsrl(scenario.spec, SafePsrlOptions("published"), seed=5, max_epoch_steps=1)
    now, actions = oracle.reset(), list[int]()
    state, plan = learner.start_epoch(learner.initial_state(), now)
    for step in range(played):
        actions.append(learner.act(plan, step, now))
        after, reward, costs, _ = oracle.step(actions[-1])
        state = learner.observe(state, Transition(step, now, actions[-1], after, reward, tuple(costs)))
        now = after
        state, plan = learner.start_epoch(state, now)
    assert player.ledger.actions == [*actions, learner.act(plan, played, now)]
    assert counts == player.ledger.counts.tolist() == learner.base.settle(state.learned).transition_counts.tolist()
    assert (status.transitions, status.overridden_actions, status.completed_episodes) == (played, 0, played)
    assert status.episode == agent.episode == played + 1
    assert [one.dual_variable for one in status.constraints] == state.learned.dual_variables.tolist()


class SwingingBuffer:
    """A streaming buffer that drains faster or slower for 20 episodes each."""

    def __init__(self) -> None:
        names = ("streaming-buffer:departure=0.9", "streaming-buffer:departure=0.2")
        self.worlds: list[TabularEnvironment] = [scenario_named(name).environment(1) for name in names]
        self.episodes = 0

    def reset(self) -> int:
        self.world = self.worlds[self.episodes // 20 % 2]
        self.episodes += 1
        return self.world.reset()

    def step(self, action: int) -> tuple[int, float, Sequence[float], bool]:
        return self.world.step(action)


def test_drift_is_detected_and_forgotten_once(started_server: NewServer) -> None:
    """Kills fall on the starts of episodes, where drift is detected: detections and counts are an uninterrupted run's."""
    server, progress, environment = started_server(settings=SNAPSHOTS), Progress(), SwingingBuffer()
    drift = DriftOptions(detect=True, memory_visits=10.0, false_alarm_steps=2.0, on_detect="forget")
    with Client(server.target, patience=300) as client:
        client.create_agent("drifting", "streaming-buffer", seed=3, options=PAPERS)
        client.update_agent("drifting", {f"drift.{name}": value for name, value in asdict(drift).items() if value is not None})

        with RemoteAgent(client, "drifting") as agent:

            def play_one() -> None:
                play_episode(environment, agent)
                progress.acknowledged()

            play_under_fire(server, [play_one], progress)
        found = [entry for entry in client.list_events("drifting") if entry.kind == events_pb2.LOG_KIND_DRIFT_DETECTED]
        status, counts = client.get_agent("drifting").status, client.get_posterior("drifting").counts
        assert client.verify_agent("drifting").ok
    expected, oracle = list[int](), SwingingBuffer()
    learner = SafePsrl(preset("streaming-buffer"), SafePsrlOptions("published"), seed=3, drift=drift)
    state = learner.initial_state()
    for episode in range(status.completed_episodes):
        now = oracle.reset()
        state, plan = learner.start_episode(state)
        if plan.drift is not None and plan.drift.detected:
            expected.append(episode)
        for step in range(learner.spec.horizon):
            action = act(plan, step, now)
            after, reward, costs, _ = oracle.step(action)
            state = learner.observe(state, Transition(step, now, action, after, reward, tuple(costs)))
            now = after
    assert [entry.episode for entry in reversed(found)] == expected
    assert status.drift_detections == len(expected) > 5
    assert counts == learner.settle(state).transition_counts.tolist()
