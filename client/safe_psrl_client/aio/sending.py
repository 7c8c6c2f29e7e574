"""The calls whose requests are made already, and can be sent again."""
# ruff: noqa: ASYNC109  # `timeout` is the call's own deadline, which the server sees too

from typing import TYPE_CHECKING, Any

from safe_psrl_proto.v1 import control_pb2, control_pb2_grpc


class AsyncSending:
    """Part of `AsyncClient`."""

    if TYPE_CHECKING:
        _control: control_pb2_grpc.ControlServiceAsyncStub

        async def _call(self, method: Any, request: Any, timeout: float | None) -> Any: ...

    async def send_start(
        self, request: control_pb2.StartEpisodeRequest, timeout: float | None = None
    ) -> control_pb2.StartEpisodeResponse:
        """`start_episode`."""
        reply: control_pb2.StartEpisodeResponse = await self._call(self._control.StartEpisode, request, timeout)
        return reply

    async def send_step(self, request: control_pb2.StepRequest, timeout: float | None = None) -> control_pb2.StepResponse:
        """`step`."""
        reply: control_pb2.StepResponse = await self._call(self._control.Step, request, timeout)
        return reply

    async def send_report(
        self, request: control_pb2.ReportEpisodeRequest, timeout: float | None = None
    ) -> control_pb2.ReportEpisodeResponse:
        """`report_episode`, also of a part of an epoch, and with a request for what follows."""
        reply: control_pb2.ReportEpisodeResponse = await self._call(self._control.ReportEpisode, request, timeout)
        return reply
