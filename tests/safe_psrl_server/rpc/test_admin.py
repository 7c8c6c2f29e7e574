"""The control plane over a socket: the life of agents, and what an operator is told of them."""

import math
import zlib
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from safe_psrl_proto.v1 import admin_pb2
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.wire import Code, Wire, refusal, serving

ACTIVE, PAUSED = admin_pb2.AGENT_CONDITION_ACTIVE, admin_pb2.AGENT_CONDITION_PAUSED


def counts_of(wire: Wire, agent: str) -> tuple[np.ndarray, int]:
    reply = wire.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent=agent))
    packed = reply.transition_counts
    assert packed.dtype == "<f8"
    return np.frombuffer(zlib.decompress(packed.data), "<f8").reshape(packed.shape), reply.version


def play(wire: Wire, agent: str, episodes: int) -> None:
    """Whole episodes that stay in state 0."""
    for _ in range(episodes):
        wire.report_episode(agent, wire.start(agent).episode, *[transition()] * 3)


def test_agents_come_in_pages() -> None:
    """By name; the last page has no token; every agent exactly once."""
    with serving() as wire:
        names = sorted(wire.create(name=f"n{i}") for i in (3, 1, 4, 0, 5))
        for size in (1, 2, 5, 1000, 0):
            found, token = [], ""
            while True:
                page = wire.list(page_size=size, page_token=token)
                assert len(page.agents) <= (size or 100)
                found += [status.agent for status in page.agents]
                if not (token := page.next_page_token):
                    break
            assert found == names
        for size in (-1, 1001):
            refused = refusal(lambda size=size: wire.list(page_size=size))
            assert refused.fields == ["page_size"]


def test_a_deleted_agent_is_gone_and_its_name_is_free(wire: Wire) -> None:
    """A new agent of that name knows nothing of the old one, and is another incarnation."""
    agent = wire.create()
    blank = wire.status(agent)
    play(wire, agent, 2)
    wire.start(agent)
    before = wire.status(agent).created_micros
    wire.delete(agent)
    for call in (lambda: wire.status(agent), lambda: wire.act(agent, 0), lambda: wire.start(agent)):
        refusal(call, Code.NOT_FOUND)
    refusal(lambda: wire.delete(agent), Code.NOT_FOUND)
    wire.create(name=agent)
    status = wire.status(agent)
    assert status.state_digest == blank.state_digest
    assert (status.version, status.created_micros > before) == (1, True)
    assert (status.episode, status.transitions, list(status.open_episodes)) == (0, 0, [])
    assert not counts_of(wire, agent)[0].any()
    assert wire.start(agent).episode == 1


# --- pausing


def test_pausing_and_resuming_can_be_repeated(wire: Wire) -> None:
    agent = wire.create()
    status = wire.pause(agent, "maintenance")
    assert (status.condition, status.condition_reason) == (PAUSED, "maintenance")
    assert wire.pause(agent, "other") == status
    status = wire.resume(agent)
    assert (status.condition, status.condition_reason) == (ACTIVE, "")
    assert wire.resume(agent) == status


def test_a_paused_agent_without_fallback_refuses_to_act(wire: Wire) -> None:
    """Nothing acts or begins; Step is refused before its transition is written; a plain report is taken in."""
    agent = wire.create()
    wire.start(agent)
    wire.pause(agent, "storm")
    before = wire.status(agent)
    for call in (
        lambda: wire.act(agent, 0),
        lambda: wire.act(agent, 0, episode=1, step=0),
        lambda: wire.step(agent, transition(0, 1, 0), episode=1, step=0),
        lambda: wire.start(agent, 0, abandon_open=True),
    ):
        refused = refusal(call, Code.FAILED_PRECONDITION, "AGENT_PAUSED")
        assert "storm" in refused.message
    assert wire.status(agent) == before
    assert not wire.report(agent, transition(0, 1, 0), episode=1, step=0).duplicate
    wire.resume(agent)
    assert wire.act(agent, 0).step == 1


def test_a_paused_agent_without_an_episode_begins_none(wire: Wire) -> None:
    agent = wire.create()
    wire.pause(agent)
    refusal(lambda: wire.act(agent, 0), reason="AGENT_PAUSED")
    assert wire.status(agent).episode == 0


def test_the_fallback_policy_acts_while_paused(wire: Wire) -> None:
    """Inside the open episode and outside any; no new episode begins; afterwards the plan's own actions are back."""
    agent = wire.create(make_spec(fallback=True))
    policy = wire.start(agent, 0, with_policy=True).policy
    wire.pause(agent)
    acted = wire.act(agent, 0)
    assert (acted.action, acted.fallback, acted.episode, acted.step) == (1, True, 1, 0)
    reply = wire.step(agent, transition(0, 1, 3))
    assert (reply.action, reply.fallback) == (1, True)
    refusal(lambda: wire.start(agent, abandon_open=True), reason="AGENT_PAUSED")
    wire.resume(agent)
    acted = wire.act(agent, 3)
    assert (acted.action, acted.fallback) == (policy.actions[4 + 3], False)
    wire.end(agent, 1)
    wire.pause(agent)
    version = wire.status(agent).version
    for step in range(3):
        acted = wire.act(agent, 2, step=step)
        assert (acted.action, acted.fallback, acted.episode, acted.step) == (1, True, 0, step)
    assert wire.act(agent, 2).step == 0
    refusal(lambda: wire.act(agent, 2, step=3), field="step")
    assert wire.status(agent).version == version


# --- looking


def test_the_policy_of_an_episode(wire: Wire) -> None:
    """Of the latest by default, of one that is open or was lately by its number."""
    agent = wire.create()

    def policy(episode: int = 0) -> admin_pb2.GetPolicyResponse:
        return wire.admin.GetPolicy(admin_pb2.GetPolicyRequest(agent=agent, episode=episode))

    refusal(policy, Code.NOT_FOUND, "EPISODE_NOT_FOUND")
    first = wire.start(agent, 0, with_policy=True).policy
    assert (policy().episode, policy().policy) == (1, first)
    wire.end(agent, 1)
    second = wire.start(agent, 0, with_policy=True).policy
    assert (policy().episode, policy().policy) == (2, second)
    assert policy(1).policy == first
    refusal(lambda: policy(3), Code.NOT_FOUND)


def test_the_posterior_counts_what_was_reported(wire: Wire) -> None:
    agent = wire.create()
    expected = np.zeros((1, 4, 3, 4), np.int64)
    assert np.array_equal(counts_of(wire, agent)[0], expected)
    wire.start(agent)
    for state, action, next_state in ((0, 1, 2), (2, 0, 2), (2, 0, 2)):
        wire.step(agent, transition(state, action, next_state))
        expected[0, state, action, next_state] += 1
        counts, version = counts_of(wire, agent)
        assert np.array_equal(counts, expected)
        assert version == wire.status(agent).version


def test_a_status_is_made_of_what_was_reported(wire: Wire) -> None:
    """Sums, regrets and violations of two completed episodes, one below the budgets and one above the first."""
    agent = wire.create()
    for costs in ([0.25, 0.5], [1.0, 0.5]):
        wire.start(agent)
        wire.report_episode(agent, wire.status(agent).episode, *[transition(0, 1, 0, reward=0.5, costs=costs)] * 3)
    status = wire.status(agent)
    energy, wear = status.constraints
    assert (status.completed_episodes, status.transitions, status.episode) == (2, 6, 2)
    assert (status.cumulative_reward, status.last_reward) == (3.0, 1.5)
    assert (energy.name, energy.cost_budget, energy.last_cost, energy.violations) == ("energy", 1.5, 3.0, 1)
    assert (energy.constraint_regret, energy.constraint_regret_max) == (0.75, 0.75)
    assert (wear.last_cost, wear.violations, wear.constraint_regret_max) == (1.5, 0, 0.0)
    assert wear.constraint_regret == pytest.approx(3.0 - 2 * 2.4, abs=1e-12)
    assert status.visited_ratio == pytest.approx(1 / 11, abs=0)


def test_a_status_stays_the_same_while_nothing_happens(wire: Wire) -> None:
    """Looking changes nothing: the same durable state gives the same bytes, however often and by whichever call."""
    agent = wire.create()
    wire.start(agent)
    wire.report(agent, transition(0, 1, 2))
    first = wire.status(agent)
    counts_of(wire, agent)
    assert wire.status(agent) == first
    assert first.visited_ratio > 0
    listed = wire.list(page_size=1000).agents
    without = admin_pb2.AgentStatus()
    without.CopyFrom(first)
    without.ClearField("state_digest")
    assert without in listed


def test_watching_tells_all_and_then_changes() -> None:
    """The first reply has every agent that was asked for; later ones have those that changed, and those that are gone."""
    with serving(drain_seconds=1.0) as wire:
        for name in ("a", "b", "c"):
            wire.create(name=name)
        everything = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(interval_seconds=0.1), timeout=30)
        one = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(agents=["b"], interval_seconds=0.1), timeout=30)
        assert [status.agent for status in next(everything).agents] == ["a", "b", "c"]
        assert [status.agent for status in next(one).agents] == ["b"]
        wire.start("a")
        reply = next(everything)
        assert [(status.agent, status.episode) for status in reply.agents] == [("a", 1)]
        assert not reply.deleted
        wire.delete("c")
        reply = next(everything)
        assert (len(reply.agents), list(reply.deleted)) == (0, ["c"])
        wire.start("b")
        assert [(status.agent, status.episode) for status in next(one).agents] == [("b", 1)]
        for call in (everything, one):
            call.cancel()
        for interval in (-1.0, 0.01, 61.0, math.nan):
            request = admin_pb2.WatchAgentsRequest(interval_seconds=interval)
            refusal(lambda request=request: next(wire.admin.WatchAgents(request)), field="interval_seconds")


def test_an_agent_can_be_verified(wire: Wire) -> None:
    agent = wire.create()
    play(wire, agent, 2)
    reply = wire.verify(agent)
    assert (reply.ok, reply.difference, reply.events) == (True, "", wire.status(agent).version)
    assert reply.state_digest == wire.status(agent).state_digest
    refusal(lambda: wire.verify("nobody"), Code.NOT_FOUND)


async def test_verifying_finds_a_difference(bench: Any) -> None:
    await bench.create()
    assert await bench.is_verified()
    bench.record("a").totals.transitions += 1
    assert not (await bench.agents.verify("a")).equal


# --- beside the services


def test_reflection_lists_the_services(wire: Wire) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (reply,) = stub.ServerReflectionInfo(iter([request]))
    names = {service.name for service in reply.list_services_response.service}
    assert {"safe_psrl.v1.ControlService", "safe_psrl.v1.AdminService", "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("service", ["", "safe_psrl.v1.ControlService", "safe_psrl.v1.AdminService"])
def test_health_of_each_service(wire: Wire, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(wire.channel)
    assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() == Code.NOT_FOUND
