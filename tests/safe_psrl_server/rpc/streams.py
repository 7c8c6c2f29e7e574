"""Messages of StepStream, and what they are answered."""

from collections.abc import Iterator
from typing import Any

from safe_psrl_proto.v1 import control_pb2
from tests.safe_psrl_server.specs import HORIZON, transition
from tests.safe_psrl_server.wire import Wire

Request, Response = control_pb2.StepStreamRequest, control_pb2.StepStreamResponse


def start(agent: str, tag: int = 0, **fields: Any) -> Request:
    return Request(tag=tag, start_episode=control_pb2.StartEpisodeRequest(agent=agent, **{"state": 0, **fields}))


def step(agent: str, tag: int, episode: int, step: int, *moved: int) -> Request:
    """By default one that stays in state 0."""
    call = control_pb2.StepRequest(agent=agent, episode=episode, step=step, transition=transition(*moved))
    return Request(tag=tag, step=call)


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


def answered(wire: Wire, *messages: Request) -> list[Response]:
    return list(wire.control.StepStream(iter(messages), timeout=60))


def replies_to(wire: Wire, *calls: Request) -> list[Response]:
    """What a batch of `calls` is answered."""
    (reply,) = answered(wire, batch(*calls, tag=-5))
    assert (reply.tag, reply.WhichOneof("outcome")) == (-5, "batch")
    return list(reply.batch.replies)


def folded(wire: Wire, agent: str) -> tuple[str, int]:
    """The digest of what is stored, which must be what is served, and the number of transitions."""
    verified = wire.verify(agent)
    status = wire.status(agent)
    assert verified.ok, verified.difference
    assert verified.state_digest == status.state_digest
    return status.state_digest, status.transitions
