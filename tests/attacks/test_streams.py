"""Streams that have no end of their own: many of them, and expensive ones."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.attacks.attackers import outcome_of, send_requests, watch_agents, watch_health
from tests.attacks.conftest import NewScene
from tests.attacks.scene import MB, Scene

pytestmark = pytest.mark.slow

STREAMS = 4096
AGENTS = 1000


def test_watches_of_health_without_a_token(scene: Scene) -> None:
    with scene.attack("4,096 health watches without a token, 256 at a time", most_memory=200 * MB) as attackers:
        attack = attackers.begin(watch_health, scene.target, STREAMS, 256, seconds=8.0)
        with scene.as_("other") as other:
            while not attack.done():
                other.list()
    sent = attack.result()
    assert sent.outcomes.pop("OK") <= 32
    assert sent.outcomes == {"RESOURCE_EXHAUSTED TOO_MANY_CALLS": sent.with_retry_info}
    assert sent.with_retry_info >= STREAMS - 32


def test_a_burst_of_watches_on_one_connection_fails_no_other_call(scene: Scene) -> None:
    """They wait in the client (`limits.max_calls_per_connection`): gRPC drops calls of all callers while too many wait."""
    with ThreadPoolExecutor(1) as thread, scene.as_("other") as other:
        attack = thread.submit(watch_health, scene.target, STREAMS, STREAMS, 8.0)
        served = 0
        while not attack.done():
            other.list()
            served += 1
    sent = attack.result()
    assert served > 10
    assert sent.outcomes.pop("OK") <= 32
    assert sent.outcomes["RESOURCE_EXHAUSTED TOO_MANY_CALLS"] == sent.with_retry_info


def test_a_watch_ends(new_scene: NewScene) -> None:
    """And its place is free again."""
    scene = new_scene("[limits]\nwatch_seconds = 2.0\nmax_public_calls_per_address = 4\n")
    with grpc.insecure_channel(scene.target) as channel, scene.as_("ops") as ops:
        health = health_pb2_grpc.HealthStub(channel)
        for _ in range(2):
            began = time.monotonic()
            watches = [health.Watch(health_pb2.HealthCheckRequest(), timeout=30) for _ in range(4)]
            watches.append(ops.admin.WatchAgents(admin_pb2.WatchAgentsRequest(), timeout=30))
            for watch in watches:
                next(watch)
            with pytest.raises(grpc.RpcError) as refused:
                health.Check(health_pb2.HealthCheckRequest(), timeout=30)
            assert outcome_of(refused.value) == ("RESOURCE_EXHAUSTED TOO_MANY_CALLS", True)
            for watch in watches:
                with pytest.raises(grpc.RpcError) as ended:
                    list(watch)
                assert outcome_of(ended.value)[0] == "UNAVAILABLE WATCH_ENDED"
            assert 1.9 < time.monotonic() - began < 10


def test_watches_of_agents_that_change_all_the_time(scene: Scene) -> None:
    names = [f"attack/{number:04}" for number in range(AGENTS)]
    with scene.as_("attacker") as own, ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: own.create(name=name), names))
    starts = [
        ("/safe_psrl.v1.ControlService/StartEpisode", control_pb2.StartEpisodeRequest(agent=name, abandon_open=True))
        for name in names
    ]
    calls = [(method, request.SerializeToString()) for method, request in starts]
    request = admin_pb2.WatchAgentsRequest(interval_seconds=0.1).SerializeToString()
    token = scene.tokens["attacker"]
    with scene.attack(f"20 watches of {AGENTS:,} agents that change all the time", most_memory=200 * MB) as attackers:
        watching = attackers.begin(watch_agents, scene.target, token, 20, request, 8.0)
        changing = attackers.begin(send_requests, scene.target, token, calls, times=10**6, at_once=8, seconds=6.0)
        sent, changed = watching.result(), changing.result()
    assert sent.outcomes.pop("messages") > 20
    assert sent.outcomes == {"DEADLINE_EXCEEDED": 20}
    assert set(changed.outcomes) == {"OK"}
