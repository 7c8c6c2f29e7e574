"""Steps of random agents of a large store through two replicas, one of which is killed: each is learned exactly once.

SAFE_PSRL_FLEET_STORE and SAFE_PSRL_FLEET_AGENTS name a store that `bench fleet` has filled; without them a small one is made.
"""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from safe_psrl import Transition, act
from safe_psrl_experiments.bench.fleet import LargeFleet, fill, prepared
from safe_psrl_experiments.bench.history import history
from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.agents.messages import unpack
from safe_psrl_server.agents.record import AgentRecord
from tests.system.postgres_process import PostgresProcess
from tests.system.server_process import NewServer, ServerProcess, counter, show, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FLEET = LargeFleet(int(os.environ.get("SAFE_PSRL_FLEET_AGENTS", "3000")), resident=100)
STEPS = 5_000
CLIENTS = 8


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    given = os.environ.get("SAFE_PSRL_FLEET_STORE")
    if given:
        yield given
        return
    with PostgresProcess() as postgres:
        asyncio.run(fill(postgres.address, FLEET))
        yield postgres.address


class Pair:
    """Two replicas. Each call goes to any of them, and is repeated until one acknowledges it."""

    def __init__(self, replicas: list[ServerProcess]) -> None:
        self.replicas = replicas
        self.steps = 0
        self._chosen = random.Random(1)
        self._lock = threading.Lock()

    def call(self, method: Callable[[ServerProcess], Any], request: Any) -> Any:
        def tried() -> Any:
            try:
                return method(self._chosen.choice(self.replicas))(request, timeout=60)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
            return None

        return wait_until(tried, 120, "a replica acknowledges the call")

    def learned(self) -> None:
        with self._lock:
            self.steps += 1


class Player:
    """Plays one more episode of a stored agent, and knows what it must become: `record` is what was stored."""

    def __init__(self, pair: Pair, name: str, seed: int, record: AgentRecord) -> None:
        self.name, self._pair, self._chosen = name, pair, random.Random(seed)
        self._learner, self._state = record.definition.learner, record.state
        self._spec = record.definition.spec

    def play(self) -> None:
        """Each action must be that of the library on its own."""
        state, self._state, plan = 0, *self._learner.start_episode(self._state)
        request = control_pb2.StartEpisodeRequest(agent=self.name, request_id="next", state=state)
        reply = self._pair.call(lambda replica: replica.control.StartEpisode, request)
        assert reply.episode == plan.episode
        for step in range(self._spec.horizon):
            assert reply.action == act(plan, step, state)
            following = self._chosen.randrange(self._spec.num_states)
            seen = control_pb2.Transition(state=state, action=reply.action, next_state=following)
            moved = Transition(step, state, reply.action, following, 0.0, ())
            self._state = self._learner.observe(self._state, moved)
            request = control_pb2.StepRequest(agent=self.name, episode=plan.episode, step=step, transition=seen)
            reply = self._pair.call(lambda replica: replica.control.Step, request)
            self._pair.learned()
            state = following

    def check(self) -> None:
        posterior = self._pair.call(lambda one: one.admin.GetPosterior, admin_pb2.GetPosteriorRequest(agent=self.name))
        expected = self._learner.settle(self._state).transition_counts
        assert np.array_equal(unpack(posterior.transition_counts), expected), self.name
        for replica in self._pair.replicas:
            assert replica.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=self.name)).ok


def stored_record() -> AgentRecord:
    record = AgentRecord("stored")
    for event in history(FLEET.transitions):
        record.apply(event)
    return record


def test_steps_of_random_agents_are_exact_while_a_replica_is_killed(store: str, new_server: NewServer) -> None:
    replicas = [new_server(settings=FLEET.settings, metrics=True) for _ in range(2)]
    for replica in replicas:
        replica.store = store
        show(f"a replica starts in {replica.start():.1f} s")
    pair, chosen = Pair(replicas), random.Random(14)
    numbers = chosen.sample(range(FLEET.agents), STEPS // 10)
    players = [Player(pair, FLEET.name(number), number, stored_record()) for number in numbers]
    with ThreadPoolExecutor(CLIENTS) as threads:
        playing = [threads.submit(player.play) for player in players]
        wait_until(lambda: pair.steps >= STEPS // 3, 600, "a third is played")
        replicas[0].kill()
        wait_until(lambda: pair.steps >= 2 * STEPS // 3, 600, "another third is played by one replica")
        show(f"the killed replica starts in {replicas[0].start():.1f} s")
        for each in playing:
            each.result()
        for checked in [threads.submit(player.check) for player in players]:
            checked.result()
    assert pair.steps == STEPS
    _check_others(replicas, {player.name for player in players})


def _check_others(replicas: list[ServerProcess], played: set[str]) -> None:
    """The fleet has as many agents as before, and some that were not played are what was stored."""
    others = [FLEET.name(number) for number in random.Random(5).sample(range(FLEET.agents), 200)]
    version, found = len(prepared(FLEET.transitions).payloads), Counter[int]()
    for name in set(others) - played:
        status = replicas[0].admin.GetAgent(admin_pb2.GetAgentRequest(agent=name)).status
        found[status.version] += 1
    assert set(found) == {version}
    for replica in replicas:
        _, page = replica.http("/metrics")
        assert counter(page, "agents") == FLEET.agents
        assert counter(page, "resident_agents") <= FLEET.resident + CLIENTS
        show(f"{counter(page, 'agent_evictions_total'):.0f} evictions")
