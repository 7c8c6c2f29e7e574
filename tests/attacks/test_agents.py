"""Creations beyond a quota, creations that are cancelled, names that come and go, and calls for an agent that is gone."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.store.sqlite.store import DATABASE_FILE
from tests.attacks.attackers import send_loops, send_requests
from tests.attacks.conftest import NewScene
from tests.attacks.scene import MB, SMALL, Scene
from tests.attacks.test_plans import flat_spec
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.wire import Code, Wire, refusal
from tests.system.server_process import show, wait_until

pytestmark = pytest.mark.slow

ADMIN = "/safe_psrl.v1.AdminService"
MOST_AGENTS = 5
CYCLES = 2000


@pytest.fixture(scope="module")
def scene(new_scene: NewScene) -> Scene:
    return new_scene(quotas={"attacker": {"max_agents": MOST_AGENTS}})


def creation(name: str) -> tuple[str, bytes]:
    request = admin_pb2.CreateAgentRequest(agent=name, spec=make_spec())
    return f"{ADMIN}/CreateAgent", request.SerializeToString()


def deletion(name: str) -> tuple[str, bytes]:
    return f"{ADMIN}/DeleteAgent", admin_pb2.DeleteAgentRequest(agent=name).SerializeToString()


def agents_of(wire: Wire) -> list[str]:
    return [status.agent for status in wire.list().agents]


def test_creations_at_once_do_not_exceed_a_quota(scene: Scene) -> None:
    names, barrier = [f"attack/{number}" for number in range(60)], threading.Barrier(60)
    with scene.as_("attacker") as own, scene.attack("60 creations at once, of 5 permitted", most_memory=200 * MB):
        for _ in range(5):

            def create(name: str) -> str:
                barrier.wait()
                try:
                    own.create(name=name)
                except grpc.RpcError as error:
                    return error.code().name
                return "OK"

            with ThreadPoolExecutor(60) as threads:
                outcomes = list(threads.map(create, names))
            assert outcomes.count("OK") == MOST_AGENTS
            assert outcomes.count("RESOURCE_EXHAUSTED") == 60 - MOST_AGENTS
            assert len(agents_of(own)) == MOST_AGENTS
            for name in agents_of(own):
                own.delete(name)


def test_a_cancelled_creation_leaves_no_reservation(scene: Scene) -> None:
    large = flat_spec(600, 2, 500)
    with scene.as_("attacker") as own:
        for number in range(20):
            request = admin_pb2.CreateAgentRequest(agent=f"attack/{number}", spec=large)
            creating = own.admin.CreateAgent.future(request)
            threading.Event().wait(number * 0.005)
            creating.cancel()

        def all_gone() -> bool:
            """Creations that went on are deleted; one that is under way still has its place."""
            for name in agents_of(own):
                own.delete(name)
            try:
                for number in range(MOST_AGENTS):
                    own.create(name=f"attack/after-{number}")
            except grpc.RpcError:
                return False
            return True

        wait_until(all_gone, 60, "the identity may have as many agents as before")
        assert agents_of(own) == [f"attack/after-{number}" for number in range(MOST_AGENTS)]
        for name in agents_of(own):
            own.delete(name)


def test_names_that_come_and_go_leave_nothing(scene: Scene) -> None:
    def cycles(first: int, last: int) -> list[tuple[str, bytes]]:
        return [call(f"attack/{number}") for number in range(first, last) for call in (creation, deletion)]

    given = scene.target, scene.tokens["attacker"]
    with scene.attack("2,000 agents created and deleted", most_memory=20 * MB) as attackers:
        first = attackers.run(send_requests, *given, cycles(0, 200), times=1, seconds=30)
        before = scene.server.resident_bytes
        loops = [cycles(start, start + 600) for start in (200, 800, 1400)]
        sent = attackers.run(send_loops, *given, loops, times=1, seconds=60)
        grown = scene.server.resident_bytes - before
    show(f"memory after {CYCLES} cycles: {grown / MB:+.1f} MB")
    assert set(first.outcomes) == set(sent.outcomes) == {"OK"}
    assert grown < 8 * MB
    with sqlite3.connect(f"file:{scene.server.data / DATABASE_FILE}?mode=ro", uri=True) as store:
        for table in ("streams", "events", "snapshots", "policies"):
            assert {name for (name,) in store.execute(f"SELECT agent FROM {table}")} <= {SMALL}  # noqa: S608
    store.close()


def test_late_calls_for_an_agent_that_was_replaced(scene: Scene) -> None:
    with scene.as_("attacker") as own:
        name, moved = own.create(name="attack/replaced"), transition()
        old = own.start(name)
        own.delete(name)
        own.create(name=name)
        new = own.start(name)
        assert old.incarnation != new.incarnation
        of_old: dict[str, Any] = {"agent": name, "incarnation": old.incarnation}
        episode = {"episode": old.episode}
        late = [
            (own.control.Step, control_pb2.StepRequest(**of_old, **episode, step=0, transition=moved)),
            (own.control.ReportTransition, control_pb2.ReportTransitionRequest(**of_old, **episode, step=0, transition=moved)),
            (own.control.ReportEpisode, control_pb2.ReportEpisodeRequest(**of_old, **episode, transitions=[moved])),
            (own.control.EndEpisode, control_pb2.EndEpisodeRequest(**of_old, **episode)),
            (own.control.StartEpisode, control_pb2.StartEpisodeRequest(**of_old, abandon_open=True)),
            (own.control.GetAction, control_pb2.GetActionRequest(**of_old, state=0)),
        ]
        with own.unchanged(name):
            for method, request in late:
                refusal(lambda method=method, request=request: method(request), Code.NOT_FOUND, "AGENT_REPLACED")
        assert own.verify(name).ok
        own.step(name, moved, episode=new.episode, step=0, incarnation=new.incarnation)
        own.delete(name)
