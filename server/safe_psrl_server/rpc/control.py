"""The data plane over gRPC: decode, call, encode."""

from collections.abc import AsyncIterator
from typing import Any

from safe_psrl_proto.v1 import control_pb2, control_pb2_grpc
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.rpc.replies import write_report, write_reported, write_start, write_step
from safe_psrl_server.rpc.step_stream import StepStream

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Methods raise `ServiceError`; `AccessControl`, which surrounds every call, turns it into a status."""

    def __init__(self, commands: AgentCommands, stream_backlog: int) -> None:
        self._commands = commands
        self._meter = commands.agents.meter
        self._stream_backlog = stream_backlog

    async def StartEpisode(
        self, request: control_pb2.StartEpisodeRequest, context: Context
    ) -> control_pb2.StartEpisodeResponse:
        begun = await self._commands.start_episode(request)
        reply = control_pb2.StartEpisodeResponse()
        write_start(begun, request, reply)
        return reply

    async def GetAction(self, request: control_pb2.GetActionRequest, context: Context) -> control_pb2.GetActionResponse:
        acted = await self._commands.get_action(request)
        self._meter.acted(fallback=acted.fallback)
        return control_pb2.GetActionResponse(**acted._asdict())

    async def ReportTransition(
        self, request: control_pb2.ReportTransitionRequest, context: Context
    ) -> control_pb2.ReportTransitionResponse:
        reported = await self._commands.report(request, wants_action=False)
        reply = control_pb2.ReportTransitionResponse()
        write_reported(self._meter, reported, reply)
        return reply

    async def Step(self, request: control_pb2.StepRequest, context: Context) -> control_pb2.StepResponse:
        reported = await self._commands.report(request, wants_action=True)
        reply = control_pb2.StepResponse()
        write_step(self._meter, reported, reply)
        return reply

    async def StepStream(
        self, request_iterator: AsyncIterator[control_pb2.StepStreamRequest], context: Context
    ) -> AsyncIterator[control_pb2.StepStreamResponse]:
        stream = StepStream(self._commands, self._stream_backlog)
        async for reply in stream.replies(request_iterator):
            yield reply

    async def ReportEpisode(
        self, request: control_pb2.ReportEpisodeRequest, context: Context
    ) -> control_pb2.ReportEpisodeResponse:
        reported = await self._commands.report_episode(request)
        reply = control_pb2.ReportEpisodeResponse()
        write_report(self._meter, reported, request, reply)
        return reply

    async def CorrectSignal(
        self, request: control_pb2.CorrectSignalRequest, context: Context
    ) -> control_pb2.CorrectSignalResponse:
        return control_pb2.CorrectSignalResponse(duplicate=await self._commands.correct_signal(request))

    async def EndEpisode(self, request: control_pb2.EndEpisodeRequest, context: Context) -> control_pb2.EndEpisodeResponse:
        episode = await self._commands.end_episode(request)
        return control_pb2.EndEpisodeResponse(end=episode.end, steps=episode.next_step)
