"""Streams: pipelined, forgiving towards single messages, and always finished."""

import pytest

from safe_psrl_client import Client, NotFoundError, RemoteAgent, StepGapError, Transition, UnavailableError, requests
from safe_psrl_proto.v1 import control_pb2


def step(agent: str, number: int) -> control_pb2.StepRequest:
    return requests.step(agent, 1, number, Transition(0, 0, 0))


def start(agent: str) -> control_pb2.StartEpisodeRequest:
    return requests.start_episode(agent, 0, None, with_policy=False, abandon_open=False)


def test_messages_may_be_sent_ahead_of_their_replies(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "factored-toy")
    with client.step_stream(agent_name) as stream:
        tags = [stream.send(start(agent_name)), *(stream.send(step(agent_name, i)) for i in range(6))]
        replies = [stream.receive() for _ in tags]
    assert [reply.tag for reply in replies] == tags
    assert replies[0].start_episode.episode == 1
    assert [reply.step.episode_done for reply in replies[1:]] == [False] * 5 + [True]


def test_one_bad_message_does_not_end_the_stream(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "factored-toy")
    with client.step_stream(agent_name) as stream:
        stream.exchange(start(agent_name))
        with pytest.raises(StepGapError) as caught:
            stream.exchange(step(agent_name, 4))
        assert caught.value.expected_step == 0
        with pytest.raises(NotFoundError):
            stream.exchange(step("nobody", 0))
        assert stream.is_usable
        assert stream.exchange(step(agent_name, 0)).step.step == 0


def test_a_reply_that_nobody_waited_for_is_not_taken_for_the_next(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "factored-toy")
    with client.step_stream(agent_name) as stream:
        stream.exchange(start(agent_name))
        stream.send(step(agent_name, 0))  # and an interrupt before its reply
        assert stream.exchange(step(agent_name, 1)).step.step == 1


def test_a_closed_stream_takes_no_more(client: Client) -> None:
    stream = client.step_stream()
    stream.close()
    stream.close()
    with pytest.raises(UnavailableError):
        stream.send(step("a", 0))
    with pytest.raises(UnavailableError):
        stream.receive()


def test_a_client_closes_its_streams(server: str, agent_name: str) -> None:
    client = Client(server)
    client.create_agent(agent_name, "factored-toy")
    stream = client.step_stream(agent_name)
    stream.exchange(start(agent_name))
    client.close()
    assert not stream.is_usable


def test_a_stream_is_renewed_before_its_time_is_up(server: str, agent_name: str) -> None:
    """With hardly any time for each stream, episodes go on over many of them."""
    with Client(server, timeout=0.02, patience=10) as hasty, Client(server) as client:
        client.create_agent(agent_name, "factored-toy")
        with RemoteAgent(hasty, agent_name, "stream") as agent:
            for _ in range(10):
                action = agent.begin(0)
                while action is not None:
                    action = agent.step(0, 0, 0)
                agent.finish()
        assert client.get_agent(agent_name).status.transitions == 60
