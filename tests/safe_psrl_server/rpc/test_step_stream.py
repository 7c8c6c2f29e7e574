"""Several calls in one message of a stream: each is handled and answered as if it had come alone, in order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.rpc.control import ControlService
from safe_psrl_server.rpc.middleware import MAX_BATCH_CALLS, calls_in
from safe_psrl_server.store.memory import MemoryStore

HORIZON = 3
Code = grpc.StatusCode
See = Callable[..., control_pb2.Transition]
Request, Response = control_pb2.StepStreamRequest, control_pb2.StepStreamResponse


@pytest.fixture
def agent(wire: Any) -> str:
    """A fresh agent."""
    return wire.create()


def start(agent: str, tag: int = 0, **fields: Any) -> Request:
    return Request(tag=tag, start_episode=control_pb2.StartEpisodeRequest(agent=agent, **{"state": 0, **fields}))


def step(agent: str, tag: int, episode: int, step: int, **fields: Any) -> Request:
    moved = control_pb2.Transition(state=0, action=1, next_state=0, **fields)
    return Request(tag=tag, step=control_pb2.StepRequest(agent=agent, episode=episode, step=step, transition=moved))


def whole(agent: str, tag: int, episode: int, *path: control_pb2.Transition, **fields: Any) -> Request:
    report = control_pb2.ReportEpisodeRequest(agent=agent, episode=episode, transitions=path, **fields)
    return Request(tag=tag, report_episode=report)


def batch(*calls: Request, tag: int = 0) -> Request:
    return Request(tag=tag, batch=control_pb2.StepStreamBatch(calls=calls))


def episode_of(agent: str, episode: int) -> Iterator[Request]:
    """From its beginning to its end."""
    yield start(agent, 10 * episode, request_id=f"e{episode}")
    for number in range(HORIZON):
        yield step(agent, 10 * episode + number + 1, episode, number)


def answered(wire: Any, *messages: Request) -> list[Response]:
    return list(wire.control.StepStream(iter(messages), timeout=60))


def replies_to(wire: Any, *calls: Request) -> list[Response]:
    """What a batch of `calls` is answered."""
    (reply,) = answered(wire, batch(*calls, tag=-5))
    assert (reply.tag, reply.WhichOneof("outcome")) == (-5, "batch")
    return list(reply.batch.replies)


def folded(wire: Any, agent: str) -> tuple[str, int]:
    """The digest of what is stored, which must be what is served, and the number of transitions."""
    verified = wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=agent))
    status = wire.status(agent)
    assert verified.ok, verified.difference
    assert verified.state_digest == status.state_digest
    return status.state_digest, status.transitions


def unchanged(wire: Any, agent: str, before: admin_pb2.AgentStatus) -> bool:
    after = wire.status(agent)
    return (after.version, after.state_digest) == (before.version, before.state_digest)


# --- order


def test_a_batch_is_answered_in_order(wire: Any) -> None:
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


def test_batches_and_single_calls_keep_their_order_on_a_stream(wire: Any, agent: str) -> None:
    """A batch is a message like any other: what comes after it finds what it did."""
    first, *rest = episode_of(agent, 1)
    replies = answered(wire, first, batch(*rest[:2], tag=3), rest[2], batch(*episode_of(agent, 2), tag=4))
    assert [reply.WhichOneof("outcome") for reply in replies] == ["start_episode", "batch", "step", "batch"]
    assert [reply.tag for reply in replies] == [10, 3, 13, 4]
    assert replies[2].step.episode_done
    assert replies[3].batch.replies[-1].step.episode_done


def test_a_batch_does_what_single_calls_do(wire: Any) -> None:
    """Replies, totals and digest are equal; so are the events, which the version counts."""
    together, alone = wire.create(), wire.create()
    replies = replies_to(wire, *episode_of(together, 1), *episode_of(together, 2))
    for number in (1, 2):
        first, *rest = episode_of(alone, number)
        said = [wire.control.StartEpisode(first.start_episode)]
        said += [wire.control.Step(call.step) for call in rest]
        theirs = replies[(number - 1) * 4 : number * 4]
        assert said == [reply.start_episode if i == 0 else reply.step for i, reply in enumerate(theirs)]
    assert folded(wire, together) == folded(wire, alone)
    mine, other = wire.status(together), wire.status(alone)
    assert (mine.version, mine.completed_episodes) == (other.version, other.completed_episodes)
    assert mine.cumulative_reward == other.cumulative_reward


def test_a_repeated_batch_changes_nothing(wire: Any, agent: str) -> None:
    """The same replies, but for `duplicate`."""
    calls = [*episode_of(agent, 1)]
    first = replies_to(wire, *calls)
    before = wire.status(agent)
    again = replies_to(wire, *calls)
    assert [reply.step.duplicate for reply in again] == [False, True, True, True]
    for reply in again[1:]:
        reply.step.duplicate = False
    assert again == first
    assert unchanged(wire, agent, before)


# --- what is refused


def test_one_bad_call_is_refused_alone(wire: Any, agent: str) -> None:
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
    wire: Any, agent: str, monkeypatch: pytest.MonkeyPatch, together: bool
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


def test_an_empty_batch_gets_an_empty_one(wire: Any) -> None:
    """Also inside it nothing is refused: there is nothing to refuse."""
    assert replies_to(wire) == []


def test_a_batch_has_at_most_1024_calls(wire: Any) -> None:
    """One more, and it is refused as a whole: nothing of it is done. The stream goes on."""
    agent, other = wire.create(), wire.create()
    calls = [call for number in range(1, 257) for call in episode_of(agent, number)]
    assert len(calls) == 1024
    before = wire.status(other)
    one_more = [*calls[:-1], start(other), step(other, 1, 1, 0)]
    refused, done = answered(wire, batch(*one_more, tag=8), batch(*calls, tag=9))
    assert (refused.tag, refused.error.code, refused.error.metadata["field"]) == (8, 3, "batch.calls")
    assert "1024 (are 1025)" in refused.error.message
    assert unchanged(wire, other, before)
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


# --- whole episodes on a stream


def test_a_whole_episode_on_a_stream(wire: Any, agent: str, transition: See) -> None:
    """As over a call of its own; repeated, it is recognised."""
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
    twin = wire.create()
    wire.start(twin)
    wire.report_episode(twin, 1, *path)
    replies = answered(wire, start(agent), whole(agent, 1, 1, *path[:1]), whole(agent, 2, 1, *path), whole(agent, 3, 1, *path))
    assert [reply.tag for reply in replies] == [0, 1, 2, 3]
    reports = [reply.report_episode for reply in replies[1:]]
    assert [(report.duplicates, report.episode_done) for report in reports] == [(0, False), (1, True), (3, True)]
    assert not any(report.HasField("next") for report in reports)
    assert folded(wire, agent) == folded(wire, twin)


def test_whole_episodes_one_after_the_other_on_a_stream(wire: Any, agent: str, transition: See) -> None:
    """Each begins the next one, alone or with others in a message: a call an episode."""
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
    twin = wire.create()

    def following(number: int) -> control_pb2.StartEpisodeRequest:
        return control_pb2.StartEpisodeRequest(state=0, request_id=f"e{number}", with_policy=True)

    for name in (agent, twin):
        wire.start(name)
    reports = [whole(agent, number, number, *path, next=following(number + 1)) for number in range(1, 6)]
    first, second, rest = answered(wire, reports[0], reports[1], batch(*reports[2:]))
    replies = [first, second, *rest.batch.replies]
    assert [reply.tag for reply in replies] == [1, 2, 3, 4, 5]
    assert [reply.report_episode.next.episode for reply in replies] == [2, 3, 4, 5, 6]
    for number, reply in enumerate(replies, 1):
        assert wire.report_episode(twin, number, *path, next=following(number + 1)) == reply.report_episode
        assert len(reply.report_episode.next.policy.actions) == 4 * HORIZON
    assert folded(wire, agent) == folded(wire, twin)


def test_a_bad_episode_on_a_stream_is_refused_alone(wire: Any, agent: str, transition: See) -> None:
    """It is applied whole or not at all; what comes after it is judged by itself."""
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
    following = control_pb2.StartEpisodeRequest(agent="another")
    wire.start(agent)
    before = wire.status(agent)
    bad = [
        whole(agent, 1, 1, path[0], path[2]),
        whole(agent, 2, 9, *path),
        whole("nobody", 3, 1, *path),
        whole(agent, 4, 1, *path, next=following),
        whole(agent, 5, 1, *path[:2], next=control_pb2.StartEpisodeRequest()),
        whole(agent, 6, 1, *path, path[0]),
    ]
    replies = answered(wire, *bad)
    assert [reply.tag for reply in replies] == [1, 2, 3, 4, 5, 6]
    assert [reply.error.code for reply in replies] == [3, 5, 5, 3, 3, 3]
    fields = [reply.error.metadata.get("field") for reply in replies]
    assert fields == ["transitions[1].state", None, None, "next.agent", "next", "transitions"]
    assert unchanged(wire, agent, before)
    *refused, done = replies_to(wire, *bad, whole(agent, 7, 1, *path))
    assert refused == replies
    assert done.report_episode.episode_done


@pytest.mark.parametrize(("size", "most"), [(1, 9), (4, 3), (100, 2)])
async def test_whoever_does_not_read_is_not_listened_to_for_ever(make_bench: Any, make_spec: Any, size: int, most: int) -> None:
    """One reply is read and no other: of many messages so many are taken in that eight calls wait, however they share them."""
    bench = await make_bench(MemoryStore()).open()
    await bench.commands.create("a", make_spec())
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
    seen = [await anext(replies) for _ in range(20)]
    assert all(len(reply.batch.replies) == size for reply in seen), "whoever reads is listened to again"
    await replies.aclose()
    await bench.close()


async def test_a_long_batch_lets_others_be_answered(make_bench: Any) -> None:
    """The loop goes round while it is decided on, though every call of it is decided at once."""
    bench, passes = await make_bench(MemoryStore()).open(), 0

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
    await bench.close()
