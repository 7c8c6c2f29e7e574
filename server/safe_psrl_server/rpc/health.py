"""`grpc.health.v1` for all services together. Watches would last forever, so the server ends them when it drains."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from safe_psrl.version import __version__
from safe_psrl_server.errors import UnavailableError

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
SERVICES: Final = frozenset({"", "safe_psrl.v1.ControlService", "safe_psrl.v1.AdminService"})


class HealthService(health_pb2_grpc.HealthServicer):
    """Reports SERVING between the calls of `serve` and `drain`, and NOT_SERVING otherwise."""

    def __init__(self, watch_seconds: float) -> None:
        self._watch_seconds = watch_seconds
        self._serving = False
        self._draining = False
        self._changed = asyncio.Event()  # set at the next change, then replaced

    def serve(self) -> None:
        self._serving = True
        self._announce()

    def drain(self) -> None:
        self._serving, self._draining = False, True
        self._announce()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r}")
        context.set_trailing_metadata((("safe-psrl-version", __version__),))
        return self._status(request.service)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        sent, until = None, asyncio.get_running_loop().time() + self._watch_seconds
        while True:
            changed, draining, status = self._changed, self._draining, self._status(request.service)
            if status != sent:
                yield status
            if draining:
                return
            sent = status
            try:
                async with asyncio.timeout_at(until):
                    await changed.wait()
            except TimeoutError:
                message = f"a watch lasts {self._watch_seconds:g} s at most; watch again"
                raise UnavailableError(message, "WATCH_ENDED") from None

    def _status(self, service: str) -> health_pb2.HealthCheckResponse:
        if service not in SERVICES:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        if self._serving:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)

    def _announce(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()
