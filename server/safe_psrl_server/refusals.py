"""Calls that are refused: answered with a status, and counted by its reason."""

from typing import Any, NoReturn

import structlog

from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.status import abort, call_status

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
log = structlog.get_logger()


class Refusals:
    """Where every error of a command leaves the server. `agent` is the one that was asked for, if any."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def abort(self, context: Context, error: ServiceError, agent: str = "") -> NoReturn:
        """End the call with `error`. Raises, so that nothing after it runs."""
        self._note(error, agent)
        await abort(context, error)

    def message_status(self, error: ServiceError, agent: str) -> control_pb2.CallStatus:
        """For one message of a stream."""
        self._note(error, agent)
        return call_status(error)

    def _note(self, error: ServiceError, agent: str) -> None:
        self._meter.refused(error.reason, agent)
        log.debug("refused", agent=agent, reason=error.reason, error=str(error))
