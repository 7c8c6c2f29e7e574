"""`StepStream`: calls without waiting for replies, alone or in batches, each with its own status.

Calls are submitted when their message arrives, so calls for one agent keep their order; replies have the order of the
messages. If a client does not read its replies, the server stops reading its messages once the backlog is full.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.errors import InvalidArgumentError, ServiceError
from safe_psrl_server.rpc.errors import Rejections, draining
from safe_psrl_server.rpc.middleware import MAX_BATCH_CALLS, calls_in
from safe_psrl_server.rpc.replies import write_report, write_start, write_step
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.roles import Role

CALLS: Final = {"step", "start_episode", "report_episode"}
CALLS_PER_PASS: Final = 64  # calls of a batch submitted before the event loop handles other work


class _Submitted(NamedTuple):
    """A call of a stream, and the future of its reply, or the error that rejects it."""

    request: control_pb2.StepStreamRequest
    outcome: "asyncio.Future[Any] | ServiceError"


class _Message(NamedTuple):
    """The calls of one message."""

    request: control_pb2.StepStreamRequest
    calls: list[_Submitted]


class StepStream:
    """One client's stream."""

    def __init__(self, commands: AgentCommands, backlog: int) -> None:
        self._commands = commands
        self._meter = commands.agents.meter
        self._rejections = Rejections(self._meter)
        self._backlog = backlog
        self._unread = 0
        self._room = asyncio.Event()
        self._messages: asyncio.Queue[_Message | None] = asyncio.Queue()

    async def replies(
        self, requests: AsyncIterator[control_pb2.StepStreamRequest]
    ) -> AsyncIterator[control_pb2.StepStreamResponse]:
        stopping = self._commands.agents.draining
        receiver = asyncio.create_task(self._receive(requests))
        stopper = asyncio.create_task(stopping.wait())
        stopper.add_done_callback(lambda _: receiver.cancel())  # what was submitted is still answered
        try:
            while (message := await self._messages.get()) is not None:
                yield await self._reply(message)
                self._unread -= calls_in(message.request)
                if self._unread < self._backlog:
                    self._room.set()
        finally:
            receiver.cancel()
            stopper.cancel()
        if stopping.is_set():
            raise draining()
        if receiver.done() and not receiver.cancelled() and (error := receiver.exception()) is not None:
            raise error  # the stream must not end as if it had succeeded

    async def _receive(self, requests: AsyncIterator[control_pb2.StepStreamRequest]) -> None:
        try:
            self._room.set()
            async for request in requests:
                await self._room.wait()
                self._unread += calls_in(request)
                if self._unread >= self._backlog:
                    self._room.clear()
                self._messages.put_nowait(await self._submit(request))
        finally:
            self._messages.put_nowait(None)

    async def _submit(self, request: control_pb2.StepStreamRequest) -> _Message:
        if not request.HasField("batch"):
            return _Message(request, [self._submit_call(request)])
        calls = request.batch.calls
        if len(calls) > MAX_BATCH_CALLS:
            too_many = InvalidArgumentError("batch.calls", f"must be at most {MAX_BATCH_CALLS}, got {len(calls)}")
            return _Message(request, [_Submitted(request, too_many)])
        submitted = list[_Submitted]()
        for call in calls:
            submitted.append(self._submit_call(call))
            if len(submitted) % CALLS_PER_PASS == 0:
                await asyncio.sleep(0)
        return _Message(request, submitted)

    def _submit_call(self, request: control_pb2.StepStreamRequest) -> _Submitted:
        kind = request.WhichOneof("call")
        try:
            if kind not in CALLS:
                problem = "is missing" if kind is None else "must not be a batch inside a batch"
                raise InvalidArgumentError("call", problem)  # one place that makes statuses
            caller().check(Role.ACT, getattr(request, kind).agent)
            if kind == "step":
                return _Submitted(request, self._commands.report(request.step, wants_action=True))
            if kind == "start_episode":
                return _Submitted(request, self._commands.start_episode(request.start_episode))
            return _Submitted(request, self._commands.report_episode(request.report_episode))
        except ServiceError as error:
            return _Submitted(request, error)

    async def _reply(self, message: _Message) -> control_pb2.StepStreamResponse:
        reply = control_pb2.StepStreamResponse()
        if not message.request.HasField("batch") or (message.calls and message.calls[0].request is message.request):
            await self._write(reply, message.calls[0])
            return reply
        reply.tag = message.request.tag
        reply.batch.SetInParent()  # of an empty batch, too
        for call in message.calls:
            await self._write(reply.batch.replies.add(), call)
        return reply

    async def _write(self, reply: control_pb2.StepStreamResponse, call: _Submitted) -> None:
        request, outcome = call
        kind = request.WhichOneof("call")
        reply.tag = request.tag
        try:
            if isinstance(outcome, ServiceError):
                raise outcome  # one place that makes statuses
            result = await outcome
            if kind == "step":
                write_step(self._meter, result, reply.step)
            elif kind == "start_episode":
                write_start(result, request.start_episode, reply.start_episode)
            else:
                write_report(self._meter, result, request.report_episode, reply.report_episode)
        except ServiceError as error:
            agent = getattr(request, kind).agent if kind in CALLS else ""
            reply.error.CopyFrom(self._rejections.message_status(error, agent))
