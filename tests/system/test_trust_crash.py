"""SIGKILL around the moments that trust rests on: a guard that is exceeded, and an agent that must not act."""

import random
import threading
from typing import Any, Final

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2, model_pb2
from tests.safe_psrl_server.specs import HORIZON, make_spec, transition
from tests.system.server_process import NewServer, ServerProcess, insist

pytestmark = pytest.mark.slow

KILL_AFTER_SECONDS: Final = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.02)  # before, within and after the commit
COSTLY: Final = transition(reward=0.5, costs=[1.0, 0.0])  # an episode of these costs 3, and the budget is 1.5
SHADOW_EPISODES: Final = 6


def create(server: ServerProcess, agent: str, **fields: Any) -> None:
    insist(server.admin.CreateAgent, admin_pb2.CreateAgentRequest(agent=agent, spec=make_spec(**fields)))


def step_request(agent: str, episode: int, step: int) -> control_pb2.StepRequest:
    return control_pb2.StepRequest(agent=agent, episode=episode, step=step, transition=COSTLY)


def kill_within(server: ServerProcess, call: grpc.Future, seconds: float) -> None:
    """Kill the server so long after the call was sent, and start it again."""
    threading.Event().wait(seconds)
    server.kill()
    call.cancel()
    server.start()


def status_of(server: ServerProcess, agent: str) -> admin_pb2.AgentStatus:
    return insist(server.admin.GetAgent, admin_pb2.GetAgentRequest(agent=agent)).status


def guard_entries(server: ServerProcess, agent: str) -> int:
    entries = insist(server.admin.ListEvents, admin_pb2.ListEventsRequest(agent=agent, page_size=1000)).entries
    return sum(entry.kind == events_pb2.LOG_KIND_GUARDED for entry in entries)


def test_a_guard_pauses_once_whenever_the_server_is_killed(started_server: NewServer) -> None:
    """The report that exceeds the limit and the pause are one commit: both are stored, or neither."""
    server = started_server()
    for round_, seconds in enumerate(KILL_AFTER_SECONDS):
        agent = f"cell/{round_}"
        create(server, agent, guard=model_pb2.Guard(max_strong_violation=1.0))
        insist(server.control.StartEpisode, control_pb2.StartEpisodeRequest(agent=agent, state=0))
        for step in range(HORIZON - 1):
            insist(server.control.Step, step_request(agent, 1, step))
        last = step_request(agent, 1, HORIZON - 1)
        kill_within(server, server.control.Step.future(last, timeout=60), seconds)
        found = status_of(server, agent)
        stored = found.transitions == HORIZON
        assert (found.paused_by_guard, guard_entries(server, agent)) == (stored, int(stored))
        assert insist(server.control.Step, last).duplicate == stored
        assert insist(server.control.Step, last).duplicate
        assert status_of(server, agent).paused_by_guard
        assert guard_entries(server, agent) == 1
    server.kill()
    server.start()
    for round_ in range(len(KILL_AFTER_SECONDS)):
        agent = f"cell/{round_}"
        assert (status_of(server, agent).paused_by_guard, guard_entries(server, agent)) == (True, 1)
        with pytest.raises(grpc.RpcError, match="guard"):
            insist(server.control.StartEpisode, control_pb2.StartEpisodeRequest(agent=agent, state=0))


def test_a_shadow_agent_never_orders_an_action_and_keeps_its_counters(started_server: NewServer) -> None:
    """Every reply that has an action is advisory, before and after each kill; each episode is counted once, as shadow."""
    server, chosen = started_server(), random.Random(7)
    create(server, "watcher", mode="shadow", fallback=True)
    replies: list[Any] = []
    for episode in range(1, SHADOW_EPISODES + 1):
        start = control_pb2.StartEpisodeRequest(agent="watcher", state=0, request_id=str(episode))
        replies += [insist(server.control.StartEpisode, start)]
        killed_step = chosen.randrange(HORIZON)
        for step in range(HORIZON):
            request = step_request("watcher", episode, step)
            if step == killed_step:
                kill_within(server, server.control.Step.future(request, timeout=60), chosen.uniform(0.0, 0.004))
                replies += [insist(server.control.StartEpisode, start)]
            replies += [insist(server.control.Step, request)]
            if step < HORIZON - 1:
                question = control_pb2.GetActionRequest(agent="watcher", state=0, episode=episode, step=step + 1)
                replies += [insist(server.control.GetAction, question)]
    insist(server.admin.PauseAgent, admin_pb2.PauseAgentRequest(agent="watcher"))
    server.kill()
    server.start()
    fallback = insist(server.control.GetAction, control_pb2.GetActionRequest(agent="watcher", state=0))
    assert fallback.fallback
    assert all(reply.advisory for reply in [*replies, fallback] if not getattr(reply, "episode_done", False))
    found = status_of(server, "watcher")
    assert (found.mode, found.shadow_episodes, found.completed_episodes) == ("shadow", SHADOW_EPISODES, 0)
    assert found.transitions == SHADOW_EPISODES * HORIZON
    assert all(constraint.constraint_regret == 0.0 for constraint in found.constraints)
    stored = insist(server.admin.VerifyAgent, admin_pb2.VerifyAgentRequest(agent="watcher"))
    assert stored.ok
