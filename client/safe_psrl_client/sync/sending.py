# Generated from safe_psrl_client/aio by `make sync-client`: do not edit.
"""The calls whose requests are made already, and can be sent again."""

from typing import TYPE_CHECKING, Any

from safe_psrl_proto.v1 import control_pb2, control_pb2_grpc


class Sending:
    """Part of `Client`."""

    if TYPE_CHECKING:
        _control: control_pb2_grpc.ControlServiceStub

        def _call(self, method: Any, request: Any, timeout: float | None) -> Any: ...

    def send_start(
        self, request: control_pb2.StartEpisodeRequest, timeout: float | None = None
    ) -> control_pb2.StartEpisodeResponse:
        """`start_episode`."""
        reply: control_pb2.StartEpisodeResponse = self._call(self._control.StartEpisode, request, timeout)
        return reply

    def send_step(self, request: control_pb2.StepRequest, timeout: float | None = None) -> control_pb2.StepResponse:
        """`step`."""
        reply: control_pb2.StepResponse = self._call(self._control.Step, request, timeout)
        return reply

    def send_report(
        self, request: control_pb2.ReportEpisodeRequest, timeout: float | None = None
    ) -> control_pb2.ReportEpisodeResponse:
        """`report_episode`, also of a part of an epoch, and with a request for what follows."""
        reply: control_pb2.ReportEpisodeResponse = self._call(self._control.ReportEpisode, request, timeout)
        return reply
