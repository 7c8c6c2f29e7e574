"""StepStream."""

from safe_psrl_conformance.check import check, require, same
from safe_psrl_conformance.problem import HORIZON, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import control_pb2

OUT_OF_RANGE = 11
INVALID_ARGUMENT = 3
NOT_FOUND = 5


def _start(name: str, tag: int, request_id: str) -> control_pb2.StepStreamRequest:
    request = control_pb2.StartEpisodeRequest(agent=name, state=0, request_id=request_id)
    return control_pb2.StepStreamRequest(tag=tag, start_episode=request)


def _step(name: str, tag: int, episode: int, step: int) -> control_pb2.StepStreamRequest:
    request = control_pb2.StepRequest(agent=name, episode=episode, step=step, transition=seen())
    return control_pb2.StepStreamRequest(tag=tag, step=request)


def _batch(tag: int, *calls: control_pb2.StepStreamRequest) -> control_pb2.StepStreamRequest:
    return control_pb2.StepStreamRequest(tag=tag, batch=control_pb2.StepStreamBatch(calls=calls))


def _replies(reply: control_pb2.StepStreamResponse) -> list[control_pb2.StepStreamResponse]:
    require(reply.HasField("batch"), f"a batch was answered with {reply.WhichOneof('outcome') or 'nothing'}")
    return list(reply.batch.replies)


@check("replies come in the order of the requests, each with its tag; all of them arrive after half-closing")
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


@check("a message that fails gets its own status, with code, reason and metadata, and the stream continues")
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


@check("replies arrive while the stream is open: each message is answered before the next one is sent")
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


@check("calls in one message are handled in their order and answered in one message in the same order, each with its tag")
def batch_in_order(wire: Wire) -> None:
    name, other = wire.create(), wire.create()
    tags = [5, 5, -1, 2**62, 0, 3, 1, 9]
    calls = [_start(name, 0, "a"), _start(other, 0, "a")]
    calls += [_step(agent, 0, 1, step) for step in range(HORIZON) for agent in (name, other)]
    for tag, call in zip(tags, calls, strict=True):
        call.tag = tag
    messages = wire.stream(name, [_batch(11, *calls), _batch(12, *calls), _batch(13)])
    same("tags of the messages", [message.tag for message in messages], [11, 12, 13])
    first, again, empty = messages
    replies = _replies(first)
    same("tags of the replies", [reply.tag for reply in replies], tags)
    same("kinds of the replies", [reply.WhichOneof("outcome") for reply in replies], ["start_episode"] * 2 + ["step"] * 6)
    same("steps", [reply.step.step for reply in replies[2:]], [0, 0, 1, 1, 2, 2])
    same("duplicates in the batch sent again", [reply.step.duplicate for reply in _replies(again)[2:]], [True] * 6)
    same("replies to an empty batch", _replies(empty), [])
    same("completed episodes", [wire.status(agent).completed_episodes for agent in (name, other)], [1, 1])


@check("a call in a batch that fails gets its own status, and the others are applied; a batch in a batch fails")
def batch_errors_are_single(wire: Wire) -> None:
    name, missing = wire.create(), wire.new_name()
    calls = [
        _start(name, 1, request_id="a"),
        _step(missing, 2, 1, 0),
        _step(name, 3, 1, 1),
        control_pb2.StepStreamRequest(tag=4),
        _batch(5, _step(name, 50, 1, 0)),
        _step(name, 6, 1, 0),
    ]
    messages = wire.stream(name, [_batch(7, *calls)])
    same("tags of the messages", [message.tag for message in messages], [7])
    replies = _replies(messages[0])
    same("tags of the replies", [one.tag for one in replies], [1, 2, 3, 4, 5, 6])
    codes = [one.error.code for one in replies]
    same("codes of the replies", codes, [0, NOT_FOUND, OUT_OF_RANGE, INVALID_ARGUMENT, INVALID_ARGUMENT, 0])
    gap = replies[2].error
    same("reason and metadata of a gap", (gap.reason, gap.metadata.get("expected_step")), ("STEP_GAP", "0"))
    same("whether the call after the errors is a duplicate", replies[5].step.duplicate, False)
    same("transitions", wire.status(name).transitions, 1)


@check("ReportEpisode on a stream behaves as a unary call: it can begin the next episode, and is atomic")
def whole_episodes(wire: Wire) -> None:
    name = wire.create()

    def report(tag: int, episode: int, steps: int, following: str) -> control_pb2.StepStreamRequest:
        begin = control_pb2.StartEpisodeRequest(state=0, request_id=following)
        request = control_pb2.ReportEpisodeRequest(agent=name, episode=episode, transitions=[seen()] * steps)
        if following:
            request.next.CopyFrom(begin)
        return control_pb2.StepStreamRequest(tag=tag, report_episode=request)

    requests = [
        _start(name, 1, request_id="a"),
        report(2, 1, HORIZON, "b"),
        report(3, 2, HORIZON - 1, "c"),
        _batch(4, report(5, 2, HORIZON, "c"), report(6, 3, HORIZON, "")),
        report(7, 3, HORIZON, ""),
    ]
    replies = wire.stream(name, requests)
    same("tags of the replies", [reply.tag for reply in replies], [1, 2, 3, 4, 7])
    same("the episode that a report began", replies[1].report_episode.next.episode, 2)
    short = replies[2].error
    same("code and field of one that begins the next too early", (short.code, short.metadata.get("field")), (3, "next"))
    both = [reply.report_episode for reply in _replies(replies[3])]
    same("replies to two reports in a batch", len(both), 2)
    same("duplicates after the error", [report.duplicates for report in both], [0, 0])
    same("the next episodes", [report.next.episode for report in both], [3, 0])
    same("duplicates in a report sent again", replies[4].report_episode.duplicates, HORIZON)
    same("completed episodes", wire.status(name).completed_episodes, 3)
