"""The data plane over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

from safe_psrl_proto.v1 import control_pb2, control_pb2_grpc, events_pb2
from safe_psrl_server import decisions
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.commands import AgentCommands, ReportedEpisode
from safe_psrl_server.decisions import Reported
from safe_psrl_server.errors import InvalidArgumentError, ServiceError
from safe_psrl_server.rpc.errors import DRAINING, Refusals
from safe_psrl_server.rpc.middleware import MAX_BATCH_CALLS, calls_in
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.roles import Role

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently


AT_ONCE = 64  # calls of a batch that are taken in without a look at others
CALLS_OF_AGENTS = {"step", "start_episode", "report_episode"}


class _Pending(NamedTuple):
    """A call of a stream that was taken in, and what will come of it; or why it was refused."""

    request: control_pb2.StepStreamRequest
    call: str | None  # which one it is
    outcome: "asyncio.Future[Any] | ServiceError"


class _Batch(NamedTuple):
    """Calls that share a message."""

    request: control_pb2.StepStreamRequest
    calls: list[_Pending]


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Errors of the commands become statuses in `Refusals`, and nowhere else."""

    def __init__(self, commands: AgentCommands, stream_backlog: int) -> None:
        self._commands = commands
        self._meter = commands.host.meter
        self._refusals = Refusals(self._meter)
        self._stream_backlog = stream_backlog

    async def StartEpisode(
        self, request: control_pb2.StartEpisodeRequest, context: Context
    ) -> control_pb2.StartEpisodeResponse:
        try:
            return start_reply(await self._commands.begin_start(request), request)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)

    async def GetAction(self, request: control_pb2.GetActionRequest, context: Context) -> control_pb2.GetActionResponse:
        try:
            acted = self._commands.action_at_hand(request) or await self._commands.get_action(request)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        self._meter.acted(fallback=acted.fallback)
        return control_pb2.GetActionResponse(
            action=acted.action, episode=acted.episode, step=acted.step, fallback=acted.fallback
        )

    async def ReportTransition(
        self, request: control_pb2.ReportTransitionRequest, context: Context
    ) -> control_pb2.ReportTransitionResponse:
        try:
            return await self._commands.begin_report(request, wants_action=False, answer=self._reported)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)

    async def Step(self, request: control_pb2.StepRequest, context: Context) -> control_pb2.StepResponse:
        try:
            return await self._commands.begin_report(request, wants_action=True, answer=self._stepped)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)

    async def StepStream(
        self, request_iterator: AsyncIterator[control_pb2.StepStreamRequest], context: Context
    ) -> AsyncIterator[control_pb2.StepStreamResponse]:
        """Replies come in the order of the requests. A message is taken in when it comes, so the order of an agent is kept.

        Whoever does not read the replies is not listened to any more once so many calls wait for that.
        """
        replies: asyncio.Queue[_Pending | _Batch | None] = asyncio.Queue()
        unread, room = 0, asyncio.Event()
        room.set()

        async def receive() -> None:
            nonlocal unread
            try:
                async for request in request_iterator:
                    await room.wait()
                    unread += calls_in(request)
                    if unread >= self._stream_backlog:
                        room.clear()
                    replies.put_nowait(await self._begin(request))
            finally:
                replies.put_nowait(None)

        draining = self._commands.host.draining
        receiver = asyncio.create_task(receive())
        stopper = asyncio.create_task(draining.wait())
        stopper.add_done_callback(lambda _: receiver.cancel())  # no more is taken in; what was is answered
        try:
            while (reply := await replies.get()) is not None:
                yield await self._finish(reply)
                unread -= calls_in(reply.request)
                if unread < self._stream_backlog:
                    room.set()
        finally:
            receiver.cancel()
            stopper.cancel()
        if draining.is_set():
            await self._refusals.abort(context, DRAINING)
        if receiver.done() and not receiver.cancelled() and (error := receiver.exception()) is not None:
            if isinstance(error, ServiceError):
                await self._refusals.abort(context, error)  # of taking messages in, not of one of them
            raise error  # which nobody expected: the stream must not end as if all were well

    async def ReportEpisode(
        self, request: control_pb2.ReportEpisodeRequest, context: Context
    ) -> control_pb2.ReportEpisodeResponse:
        try:
            reported = await self._commands.begin_report_episode(request)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        reply = control_pb2.ReportEpisodeResponse()
        self._write_report(reported, request, reply)
        return reply

    async def EndEpisode(self, request: control_pb2.EndEpisodeRequest, context: Context) -> control_pb2.EndEpisodeResponse:
        try:
            episode = await self._commands.end_episode(request)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        return control_pb2.EndEpisodeResponse(end=episode.end, steps=episode.next_step)

    def _reported(self, outcome: tuple[AgentRecord, Reported]) -> control_pb2.ReportTransitionResponse:
        _, reported = outcome
        self._meter.recognised(reported.duplicate)
        return control_pb2.ReportTransitionResponse(
            duplicate=reported.duplicate, episode=reported.episode.number, step=reported.step, episode_done=reported.done
        )

    def _stepped(self, outcome: tuple[AgentRecord, Reported]) -> control_pb2.StepResponse:
        reply = step_reply(*outcome)
        self._meter.recognised(reply.duplicate)
        self._meter.acted(fallback=reply.fallback)
        return reply

    def _write_report(
        self,
        reported: ReportedEpisode,
        request: control_pb2.ReportEpisodeRequest,
        reply: control_pb2.ReportEpisodeResponse,
    ) -> None:
        self._meter.recognised(reported.duplicates)
        reply.duplicates, reply.episode_done = reported.duplicates, reported.done
        if reported.next is not None:
            write_start(reported.next, request.next, reply.next)

    async def _begin(self, request: control_pb2.StepStreamRequest) -> _Pending | _Batch:
        """Take in a message of a stream; `_finish` waits until that is durable."""
        if not request.HasField("batch"):
            return self._begin_call(request)
        calls = request.batch.calls
        if len(calls) > MAX_BATCH_CALLS:
            too_many = InvalidArgumentError("batch.calls", f"must be at most {MAX_BATCH_CALLS} (are {len(calls)})")
            return _Pending(request, "batch", too_many)
        begun = list[_Pending]()
        for call in calls:
            begun.append(self._begin_call(call))
            if len(begun) % AT_ONCE == 0:
                await asyncio.sleep(0)  # others are to be answered, too
        return _Batch(request, begun)

    def _begin_call(self, request: control_pb2.StepStreamRequest) -> _Pending:
        call = request.WhichOneof("call")
        try:
            if call is None:
                raise InvalidArgumentError("call", "is missing")
            if call == "batch":
                raise InvalidArgumentError("call", "must not be a batch inside a batch")
            caller().check(Role.ACT, getattr(request, call).agent)
            if call == "step":
                stepped = self._commands.begin_report(request.step, wants_action=True, answer=self._stepped)
                return _Pending(request, call, stepped)
            if call == "start_episode":
                return _Pending(request, call, self._commands.begin_start(request.start_episode))
            return _Pending(request, call, self._commands.begin_report_episode(request.report_episode))
        except ServiceError as error:
            return _Pending(request, call, error)

    async def _finish(self, pending: _Pending | _Batch) -> control_pb2.StepStreamResponse:
        reply = control_pb2.StepStreamResponse()
        if isinstance(pending, _Batch):
            reply.tag = pending.request.tag
            reply.batch.SetInParent()  # without calls, too
            replies = reply.batch.replies
            for one in pending.calls:
                await _over(one)
                self._write(replies.add(), one)
        else:
            await _over(pending)
            self._write(reply, pending)
        return reply

    def _write(self, reply: control_pb2.StepStreamResponse, pending: _Pending) -> None:
        """What came of a call, which is over."""
        request, call, outcome = pending
        reply.tag = request.tag
        try:
            if isinstance(outcome, ServiceError):
                raise outcome  # one place that makes statuses of a stream
            if call == "step":
                reply.step.CopyFrom(outcome.result())
            elif call == "start_episode":
                write_start(outcome.result(), request.start_episode, reply.start_episode)
            else:
                self._write_report(outcome.result(), request.report_episode, reply.report_episode)
        except ServiceError as error:
            agent = getattr(request, call).agent if call in CALLS_OF_AGENTS else ""
            reply.error.CopyFrom(self._refusals.message_status(error, agent))


async def _over(pending: _Pending) -> None:
    """Wait for a call that was begun, however it ends."""
    outcome = pending.outcome
    if not isinstance(outcome, ServiceError) and not outcome.done():
        with suppress(ServiceError):  # it is asked for when the reply is written
            await outcome


def start_reply(
    started: events_pb2.EpisodeStarted, request: control_pb2.StartEpisodeRequest
) -> control_pb2.StartEpisodeResponse:
    reply = control_pb2.StartEpisodeResponse()
    write_start(started, request, reply)
    return reply


def write_start(
    started: events_pb2.EpisodeStarted, request: control_pb2.StartEpisodeRequest, reply: control_pb2.StartEpisodeResponse
) -> None:
    """Where the reply is sent from: a copy of a policy takes as long as all else."""
    policy = started.policy
    reply.episode, reply.horizon, reply.predicted_reward = started.episode, policy.horizon, started.predicted_reward
    reply.predicted_costs.extend(started.predicted_costs)
    reply.dual_variables.extend(started.next_dual_variables)
    if request.HasField("state"):
        reply.action = policy.actions[request.state]  # of step 0
    if request.with_policy:
        reply.policy.CopyFrom(policy)


def step_reply(record: AgentRecord, reported: Reported) -> control_pb2.StepResponse:
    """Of what is durable, whether the record has it yet or not."""
    reply = control_pb2.StepResponse(duplicate=reported.duplicate, episode=reported.episode.number, step=reported.step)
    if reported.is_last:
        reply.episode_done = True
    else:
        reply.action, reply.fallback = decisions.action_at(record, reported.episode, reported.step + 1, reported.next_state)
    return reply
