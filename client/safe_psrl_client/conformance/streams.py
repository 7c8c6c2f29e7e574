"""StepStream."""

from safe_psrl_client.conformance.check import check, require, same
from safe_psrl_client.conformance.problem import HORIZON, seen
from safe_psrl_client.conformance.wire import Wire
from safe_psrl_proto.v1 import control_pb2

OUT_OF_RANGE = 11
INVALID_ARGUMENT = 3


def _start(name: str, tag: int, request_id: str) -> control_pb2.StepStreamRequest:
    request = control_pb2.StartEpisodeRequest(agent=name, state=0, request_id=request_id)
    return control_pb2.StepStreamRequest(tag=tag, start_episode=request)


def _step(name: str, tag: int, episode: int, step: int) -> control_pb2.StepStreamRequest:
    request = control_pb2.StepRequest(agent=name, episode=episode, step=step, transition=seen())
    return control_pb2.StepStreamRequest(tag=tag, step=request)


@check("replies come in the order of the requests, each with its tag; half-closing lets all of them come")
def order_and_tags(wire: Wire) -> None:
    name = wire.create()
    tags = [-1, 0, 7, 7, 2**62, 3, 1, 9]
    calls = [(1, None), (1, 0), (1, 1), (1, 2), (2, None), (2, 0), (2, 1), (2, 2)]
    requests = [
        _start(name, tag, request_id=f"e{episode}") if step is None else _step(name, tag, episode, step)
        for tag, (episode, step) in zip(tags, calls, strict=True)
    ]
    replies = wire.stream(name, requests)
    same("tags of the replies", [reply.tag for reply in replies], tags)
    kinds = [reply.WhichOneof("outcome") for reply in replies]
    same("kinds of the replies", kinds, ["start_episode", "step", "step", "step"] * 2)
    same("steps", [reply.step.step for reply in replies if reply.HasField("step")], [0, 1, 2] * 2)
    same("completed episodes", wire.status(name).completed_episodes, 2)


@check("a message that fails gets a status of its own, with code, reason and metadata, and the stream goes on")
def errors_are_single(wire: Wire) -> None:
    name = wire.create()
    requests = [
        _start(name, 1, request_id="a"),
        _step(name, 2, 1, 1),
        control_pb2.StepStreamRequest(tag=3),
        _step(name, 4, 1, 0),
    ]
    replies = wire.stream(name, requests)
    same("tags of the replies", [reply.tag for reply in replies], [1, 2, 3, 4])
    gap, empty = replies[1].error, replies[2].error
    same("code and reason of a gap", (gap.code, gap.reason), (OUT_OF_RANGE, "STEP_GAP"))
    same("its metadata `expected_step`", gap.metadata.get("expected_step"), "0")
    same("the code of a message without a call", empty.code, INVALID_ARGUMENT)
    require(replies[3].HasField("step"), "the message after the errors was not answered with a step")


@check("replies come while the stream is open: each message is answered before the next one is sent")
def replies_at_once(wire: Wire) -> None:
    name = wire.create()
    stream = wire.open_stream(name)
    try:
        started = stream.exchange(control_pb2.StartEpisodeRequest(agent=name, request_id="a"))
        same("the episode", started.start_episode.episode, 1)
        for step in range(HORIZON):
            request = control_pb2.StepRequest(agent=name, episode=1, step=step, transition=seen())
            same("the step", stream.exchange(request).step.step, step)
    finally:
        stream.close()


@check("steps that were sent on one stream are recognised on another")
def repeated_on_another(wire: Wire) -> None:
    name = wire.create()
    wire.stream(name, [_start(name, 1, request_id="a"), _step(name, 2, 1, 0)])
    replies = wire.stream(name, [_start(name, 1, request_id="a"), _step(name, 2, 1, 0), _step(name, 3, 1, 1)])
    same("duplicates", [reply.step.duplicate for reply in replies], [False, True, False])
    same("transitions", wire.status(name).transitions, 2)
