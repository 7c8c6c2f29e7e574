"""The data plane over gRPC: decode, call, encode."""

from collections.abc import AsyncIterator
from typing import Any

from safe_psrl_proto.v1 import control_pb2, control_pb2_grpc
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.rpc.errors import Refusals
from safe_psrl_server.rpc.replies import write_report, write_start, write_step
from safe_psrl_server.rpc.step_stream import StepStream

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Errors of the commands become statuses in `Refusals`, and nowhere else."""

    def __init__(self, commands: AgentCommands, stream_backlog: int) -> None:
        self._commands = commands
        self._meter = commands.agents.meter
        self._refusals = Refusals(self._meter)
        self._stream_backlog = stream_backlog

    async def StartEpisode(
        self, request: control_pb2.StartEpisodeRequest, context: Context
    ) -> control_pb2.StartEpisodeResponse:
        try:
            started = await self._commands.start_episode(request)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        reply = control_pb2.StartEpisodeResponse()
        write_start(started, request, reply)
        return reply

    async def GetAction(self, request: control_pb2.GetActionRequest, context: Context) -> control_pb2.GetActionResponse:
        try:
            acted = await self._commands.get_action(request)
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
            _, reported = await self._commands.report(request, wants_action=False)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        self._meter.recognised(reported.duplicate)
        return control_pb2.ReportTransitionResponse(
            duplicate=reported.duplicate, episode=reported.episode.number, step=reported.step, episode_done=reported.done
        )

    async def Step(self, request: control_pb2.StepRequest, context: Context) -> control_pb2.StepResponse:
        try:
            record, reported = await self._commands.report(request, wants_action=True)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        reply = control_pb2.StepResponse()
        write_step(self._meter, record, reported, reply)
        return reply

    async def StepStream(
        self, request_iterator: AsyncIterator[control_pb2.StepStreamRequest], context: Context
    ) -> AsyncIterator[control_pb2.StepStreamResponse]:
        stream = StepStream(self._commands, self._refusals, self._stream_backlog)
        async for reply in stream.replies(request_iterator, context):
            yield reply

    async def ReportEpisode(
        self, request: control_pb2.ReportEpisodeRequest, context: Context
    ) -> control_pb2.ReportEpisodeResponse:
        try:
            reported = await self._commands.report_episode(request)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        reply = control_pb2.ReportEpisodeResponse()
        write_report(self._meter, reported, request, reply)
        return reply

    async def EndEpisode(self, request: control_pb2.EndEpisodeRequest, context: Context) -> control_pb2.EndEpisodeResponse:
        try:
            episode = await self._commands.end_episode(request)
        except ServiceError as error:
            await self._refusals.abort(context, error, request.agent)
        return control_pb2.EndEpisodeResponse(end=episode.end, steps=episode.next_step)
