"""Several calls in one message of a stream: each is handled and answered as if it had come alone, in order."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.rpc.control import ControlService
from safe_psrl_server.rpc.middleware import MAX_BATCH_CALLS, calls_in
from tests.safe_psrl_server.bench import NewBench
from tests.safe_psrl_server.rpc.streams import Request, answered, batch, episode_of, folded, replies_to, start, step
from tests.safe_psrl_server.specs import HORIZON
from tests.safe_psrl_server.wire import Code, Wire, without_incarnation


def test_a_batch_is_answered_in_order(wire: Wire) -> None:
    """Each reply has the tag of its call, whatever the tags are; the calls of an agent are handled one after the other."""
    agents = [wire.create() for _ in range(3)]
    calls = [call for together in zip(*(episode_of(agent, 1) for agent in agents), strict=True) for call in together]
    for call, tag in zip(calls, [7, 7, -1, 2**62, 0, 3, 1, 9, 8, 8, 5, -(2**62)], strict=True):
        call.tag = tag
    replies = replies_to(wire, *calls)
    assert [reply.tag for reply in replies] == [call.tag for call in calls]
    assert [reply.WhichOneof("outcome") for reply in replies] == ["start_episode"] * 3 + ["step"] * 9
    assert [reply.step.step for reply in replies[3:]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [reply.step.episode_done for reply in replies[3:]] == [False] * 6 + [True] * 3


def test_batches_and_single_calls_keep_their_order_on_a_stream(wire: Wire, agent: str) -> None:
    """A batch is a message like any other: what comes after it finds what it did."""
    first, *rest = episode_of(agent, 1)
    replies = answered(wire, first, batch(*rest[:2], tag=3), rest[2], batch(*episode_of(agent, 2), tag=4))
    assert [reply.WhichOneof("outcome") for reply in replies] == ["start_episode", "batch", "step", "batch"]
    assert [reply.tag for reply in replies] == [10, 3, 13, 4]
    assert replies[2].step.episode_done
    assert replies[3].batch.replies[-1].step.episode_done


def test_a_batch_does_what_single_calls_do(wire: Wire) -> None:
    """Replies, totals and digest are equal; so are the events, which the version counts."""
    together, alone = wire.create(), wire.create()
    replies = replies_to(wire, *episode_of(together, 1), *episode_of(together, 2))
    for number in (1, 2):
        first, *rest = episode_of(alone, number)
        said = [wire.control.StartEpisode(first.start_episode)]
        said += [wire.control.Step(call.step) for call in rest]
        theirs = replies[(number - 1) * 4 : number * 4]
        for started in (said[0], theirs[0].start_episode):
            without_incarnation(started)
        assert said == [reply.start_episode if i == 0 else reply.step for i, reply in enumerate(theirs)]
    assert folded(wire, together) == folded(wire, alone)
    mine, other = wire.status(together), wire.status(alone)
    assert (mine.version, mine.completed_episodes) == (other.version, other.completed_episodes)
    assert mine.cumulative_reward == other.cumulative_reward


def test_a_repeated_batch_changes_nothing(wire: Wire, agent: str) -> None:
    calls = [*episode_of(agent, 1)]
    first = replies_to(wire, *calls)
    with wire.unchanged(agent):
        again = replies_to(wire, *calls)
        assert [reply.step.duplicate for reply in again] == [False, True, True, True]
        for reply in again[1:]:
            reply.step.duplicate = False
        assert again == first


def test_one_bad_call_is_refused_alone(wire: Wire, agent: str) -> None:
    """With its own tag and status; those before and after it are applied."""
    replies = replies_to(
        wire,
        start(agent, 1),
        step("nobody", 2, 1, 0),
        step(agent, 3, 1, 0),
        Request(tag=4),
        batch(step(agent, 50, 1, 1), tag=5),
        step(agent, 6, 1, 2),
        step(agent, 7, 1, 1),
        step(agent, 8, 1, 2),
    )
    assert [reply.tag for reply in replies] == [1, 2, 3, 4, 5, 6, 7, 8]
    kinds = ["start_episode", "error", "step", "error", "error", "error", "step", "step"]
    assert [reply.WhichOneof("outcome") for reply in replies] == kinds
    unknown, empty, nested, gap = (reply.error for reply in replies if reply.HasField("error"))
    assert (unknown.code, unknown.reason) == (5, "AGENT_NOT_FOUND")
    assert (empty.code, empty.metadata["field"]) == (3, "call")
    assert (nested.code, nested.metadata["field"]) == (3, "call")
    assert "batch" in nested.message
    assert (gap.code, gap.reason, gap.metadata["expected_step"]) == (11, "STEP_GAP", "1")
    assert replies[-1].step.episode_done
    assert folded(wire, agent)[1] == HORIZON


@pytest.mark.parametrize("together", [False, True])
def test_a_failure_that_nobody_expected_ends_the_stream_with_a_status(
    wire: Wire, agent: str, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """What was taken in before is answered. A stream that ended with OK would say that everything was."""

    def fail(*_arguments: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("safe_psrl_server.agents.decisions.repeated_start", fail)
    replies = wire.control.StepStream(iter([Request(tag=1), batch(start(agent)) if together else start(agent)]), timeout=60)
    assert next(replies).tag == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(replies)
    assert caught.value.code() is Code.UNKNOWN


def test_an_empty_batch_gets_an_empty_one(wire: Wire) -> None:
    assert replies_to(wire) == []


def test_a_batch_has_at_most_1024_calls(wire: Wire) -> None:
    """One more, and it is refused as a whole: nothing of it is done. The stream goes on."""
    agent, other = wire.create(), wire.create()
    calls = [call for number in range(1, 257) for call in episode_of(agent, number)]
    assert len(calls) == 1024
    with wire.unchanged(other):
        one_more = [*calls[:-1], start(other), step(other, 1, 1, 0)]
        refused, done = answered(wire, batch(*one_more, tag=8), batch(*calls, tag=9))
        assert (refused.tag, refused.error.code, refused.error.metadata["field"]) == (8, 3, "batch.calls")
        assert "1024, got 1025" in refused.error.message
    assert done.tag == 9
    assert {reply.WhichOneof("outcome") for reply in done.batch.replies} == {"start_episode", "step"}
    assert folded(wire, agent)[1] == 256 * HORIZON
    assert not any(reply.step.duplicate for reply in done.batch.replies), "the refused one had done something"


@pytest.mark.parametrize(("held", "counted"), [(0, 1), (1, 1), (7, 7), (1024, 1024), (10**5, 1024)])
def test_what_a_batch_counts_for(held: int, counted: int) -> None:
    """As many calls as it holds; one that is refused for its length costs no more than the longest that is not."""
    assert calls_in(batch(*[Request()] * held)) == counted


def test_a_message_that_is_no_batch_counts_for_one() -> None:
    assert [calls_in(message) for message in (Request(), start("a"), admin_pb2.ImportAgentRequest())] == [1, 1, 1]


@pytest.mark.parametrize(("size", "most"), [(1, 9), (4, 3), (20, 2)])
async def test_a_client_that_does_not_read_is_held_back(new_bench: NewBench, size: int, most: int) -> None:
    """One reply is read and no other: of many messages so many are taken in that eight calls wait, however they share them."""
    bench = await new_bench()
    await bench.create()
    taken = 0

    async def messages() -> AsyncIterator[Request]:
        nonlocal taken
        for _ in range(500):
            taken += 1
            yield batch(*[start("a", abandon_open=True)] * size)

    replies = ControlService(bench.commands, stream_backlog=8).StepStream(messages(), None)
    assert len((await anext(replies)).batch.replies) == size
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert most <= taken <= most + 2, "the next one is asked for before there is room"
    seen = [await anext(replies) for _ in range(most + 3)]
    assert all(len(reply.batch.replies) == size for reply in seen), "a client that reads is served again"
    await replies.aclose()


async def test_a_long_batch_lets_others_be_answered(new_bench: NewBench) -> None:
    """The loop goes round while it is decided on, though every call of it is decided at once."""
    bench, passes = await new_bench(), 0

    async def others() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    async def messages() -> AsyncIterator[control_pb2.StepStreamRequest]:
        yield batch(*[start("nobody")] * MAX_BATCH_CALLS)

    looking_on = asyncio.create_task(others())
    await asyncio.sleep(0)
    replies = ControlService(bench.commands, stream_backlog=8).StepStream(messages(), None)
    assert len((await anext(replies)).batch.replies) == MAX_BATCH_CALLS
    await replies.aclose()
    looking_on.cancel()
    assert passes >= MAX_BATCH_CALLS // 64 - 1
