"""A call for an agent that was deleted never reaches another agent of the same name."""

from collections.abc import Callable

import pytest

from safe_psrl_client import Client
from safe_psrl_client.errors import NotFoundError
from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.embedded import EmbeddedServer
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.wire import Code, Wire, refusal

Late = Callable[[Wire, str, int], object]
MOVED = transition(0, 1, 0)
LATE: dict[str, Late] = {
    "Step": lambda wire, agent, old: wire.step(agent, MOVED, episode=1, step=0, incarnation=old),
    "ReportTransition": lambda wire, agent, old: wire.report(agent, MOVED, episode=1, step=0, incarnation=old),
    "ReportEpisode": lambda wire, agent, old: wire.control.ReportEpisode(
        control_pb2.ReportEpisodeRequest(agent=agent, episode=1, transitions=[MOVED], incarnation=old)
    ),
    "EndEpisode": lambda wire, agent, old: wire.control.EndEpisode(
        control_pb2.EndEpisodeRequest(agent=agent, episode=1, incarnation=old)
    ),
    "StartEpisode": lambda wire, agent, old: wire.start(agent, abandon_open=True, incarnation=old),
    "GetAction": lambda wire, agent, old: wire.control.GetAction(
        control_pb2.GetActionRequest(agent=agent, state=0, incarnation=old)
    ),
}


@pytest.mark.parametrize("call", LATE)
def test_a_late_call_does_not_reach_the_successor(wire: Wire, call: str) -> None:
    agent = wire.create()
    old = wire.start(agent).incarnation
    wire.delete(agent)
    wire.create(name=agent)
    new = wire.start(agent).incarnation
    assert old not in {0, new}
    with wire.unchanged(agent):
        refusal(lambda: LATE[call](wire, agent, old), Code.NOT_FOUND, "AGENT_REPLACED")
    LATE[call](wire, agent, new)


def test_replies_name_the_incarnation_of_the_status(wire: Wire, agent: str) -> None:
    incarnation = wire.status(agent).created_micros
    assert wire.start(agent, state=0).incarnation == incarnation
    assert wire.control.GetAction(control_pb2.GetActionRequest(agent=agent, state=0)).incarnation == incarnation


def test_an_episode_of_the_client_stays_with_its_agent() -> None:
    with EmbeddedServer() as server, Client(server.target) as client:
        client.create_agent("a", make_spec())
        episode = client.episode("a", 0)
        episode.begin()
        client.delete_agent("a")
        client.create_agent("a", make_spec())
        client.start_episode("a", 0)
        with pytest.raises(NotFoundError, match="deleted and created again"):
            episode.report(0)
        assert client.get_agent("a").status.transitions == 0
