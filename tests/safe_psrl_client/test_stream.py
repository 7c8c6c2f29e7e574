"""Streams: pipelined, forgiving towards single messages, and always finished."""

import pytest

from safe_psrl_client import (
    AsyncClient,
    Client,
    InvalidArgumentError,
    NotFoundError,
    RemoteAgent,
    StepGapError,
    StepStream,
    Transition,
    UnavailableError,
    requests,
)
from safe_psrl_proto.v1 import control_pb2

HORIZON = 6


def step(agent: str, number: int) -> control_pb2.StepRequest:
    return requests.step(agent, 1, number, Transition(0, 0, 0))


def start(agent: str) -> control_pb2.StartEpisodeRequest:
    return requests.start_episode(agent, 0, None, with_policy=False, abandon_open=False)


def test_messages_may_be_sent_ahead_of_their_replies(client: Client, toy: str) -> None:
    with client.step_stream(toy) as stream:
        tags = [stream.send(start(toy)), *(stream.send(step(toy, i)) for i in range(6))]
        replies = [stream.receive() for _ in tags]
    assert [reply.tag for reply in replies] == tags
    assert replies[0].start_episode.episode == 1
    assert [reply.step.episode_done for reply in replies[1:]] == [False] * 5 + [True]


def test_one_bad_message_does_not_end_the_stream(client: Client, toy: str) -> None:
    with client.step_stream(toy) as stream:
        stream.exchange(start(toy))
        with pytest.raises(StepGapError) as caught:
            stream.exchange(step(toy, 4))
        assert caught.value.expected_step == 0
        with pytest.raises(NotFoundError):
            stream.exchange(step("nobody", 0))
        assert stream.is_usable
        assert stream.exchange(step(toy, 0)).step.step == 0


def test_a_stale_reply_is_not_returned_for_the_next_call_or_batch(client: Client, toy: str) -> None:
    with client.step_stream(toy) as stream:
        stream.exchange(start(toy))
        stream.send(step(toy, 0))  # and an interrupt before its reply
        assert stream.exchange(step(toy, 1)).step.step == 1
        stream.send(step(toy, 2))
        assert [reply.step.step for reply in stream.exchange_all([step(toy, 3)])] == [3]


def report(agent: str, episode: int, steps: int = HORIZON, *, begins_next: bool = False) -> control_pb2.ReportEpisodeRequest:
    request = requests.report_episode(agent, episode, [Transition(0, 0, 0)] * steps)
    if begins_next:
        request.next.state = 0
    return request


def test_whole_episodes_go_over_a_stream(client: Client, toy: str) -> None:
    """Exchanged one by one, or sent ahead."""
    with client.step_stream(toy) as stream:
        stream.exchange(start(toy))
        assert stream.exchange(report(toy, 1, begins_next=True)).report_episode.next.episode == 2
        with pytest.raises(NotFoundError):
            stream.exchange(report(toy, 5))
        tags = [stream.send(report(toy, number, begins_next=True)) for number in (2, 3, 4)]
        replies = [stream.receive() for _ in tags]
    assert [reply.tag for reply in replies] == tags
    assert [reply.report_episode.next.episode for reply in replies] == [3, 4, 5]


def test_calls_of_many_agents_share_a_message(client: Client, agent_name: str) -> None:
    """The replies come in the order of the calls, whatever their kinds."""
    names = [f"{agent_name[:100]}-{i}" for i in range(3)]
    for name in names:
        client.create_agent(name, "factored-toy")
    with client.step_stream() as stream:
        started = stream.exchange_all(map(start, names))
        assert [reply.start_episode.episode for reply in started] == [1, 1, 1]
        replies = stream.exchange_all([step(names[0], 0), report(names[1], 1), start(names[2]), step(names[0], 1)])
    kinds = ["step", "report_episode", "error", "step"]
    assert [reply.WhichOneof("outcome") for reply in replies] == kinds
    assert [replies[0].step.step, replies[3].step.step] == [0, 1]


def test_a_call_that_failed_has_its_error_in_its_place(client: Client, toy: str) -> None:
    """Nothing is raised, for the others have succeeded, and the stream goes on."""
    with client.step_stream(toy) as stream:
        calls = [start(toy), step(toy, 3), step("nobody", 0), report(toy, 9), step(toy, 0)]
        replies = stream.exchange_all(calls)
        assert [reply.error.reason for reply in replies] == ["", "STEP_GAP", "AGENT_NOT_FOUND", "EPISODE_NOT_FOUND", ""]
        assert replies[4].step.step == 0
        assert stream.exchange_all([]) == []
        assert stream.exchange(step(toy, 1)).step.step == 1


def test_more_calls_than_a_message_takes_are_sent_in_several(client: Client, toy: str) -> None:
    """Of 1,024 each, and the rest; the replies are those of all, in order."""
    calls = [start(toy), *(step(toy, number % 2) for number in range(2499))]
    assert [len(message.batch.calls) for message in requests.stream_batches(calls)] == [1024, 1024, 452]
    with client.step_stream(toy) as stream:
        replies = stream.exchange_all(calls)
    assert [reply.tag for reply in replies] == list(range(2500))
    assert [reply.step.step for reply in replies[1:]] == [number % 2 for number in range(2499)]
    assert [reply.step.duplicate for reply in replies[1:]] == [False, False] + [True] * 2497
    assert client.get_agent(toy).status.transitions == 2


def test_a_batch_that_is_refused_as_a_whole_raises(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a server that takes fewer calls in a message, or does not know batches."""
    monkeypatch.setattr(requests, "MAX_BATCH_CALLS", 2000)
    with client.step_stream() as stream:
        with pytest.raises(InvalidArgumentError, match="at most 1024"):
            stream.exchange_all([step("nobody", 0)] * 1025)
        assert stream.is_usable
        assert len(stream.exchange_all([step("nobody", 0)] * 1024)) == 1024


async def test_asyncio_exchanges_many_calls_at_once(server: str, agent_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the synchronous client: in order, errors in their place, raised only if a batch is refused."""
    async with AsyncClient(server) as client, client.step_stream(agent_name) as stream:
        await client.create_agent(agent_name, "factored-toy")
        calls = [start(agent_name), *(step(agent_name, number % 2) for number in range(1100)), step(agent_name, 5)]
        replies = await stream.exchange_all(calls)
        assert [reply.tag for reply in replies] == list(range(1102))
        assert [reply.step.step for reply in replies[1:-1]] == [number % 2 for number in range(1100)]
        assert replies[-1].error.reason == "STEP_GAP"
        assert (await stream.exchange_all([report(agent_name, 1)]))[0].report_episode.duplicates == 2
        assert await stream.exchange_all([]) == []
        monkeypatch.setattr(requests, "MAX_BATCH_CALLS", 2000)
        with pytest.raises(InvalidArgumentError, match="at most 1024"):
            await stream.exchange_all([step("nobody", 0)] * 1025)


def test_a_closed_stream_accepts_no_more(client: Client) -> None:
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


def test_a_stream_is_replaced_before_its_deadline(server: str, agent_name: str) -> None:
    """Steps go on over one stream after the other."""

    class CountingClient(Client):
        opened = 0

        def step_stream(self, agent: str = "", *, timeout: float | None = None) -> StepStream:
            self.opened += 1
            return super().step_stream(agent, timeout=timeout)

    episodes = 0
    with CountingClient(server, timeout=0.5) as client:
        client.create_agent(agent_name, "factored-toy")
        with RemoteAgent(client, agent_name, "stream") as agent:
            while client.opened < 3:
                action = agent.begin(0)
                while action is not None:
                    action = agent.step(0, 0, 0)
                agent.finish()
                episodes += 1
        assert client.get_agent(agent_name).status.transitions == HORIZON * episodes
