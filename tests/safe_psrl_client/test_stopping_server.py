"""A gRPC server that stops ends the calls that it has not begun with CANCELLED: the client treats them as UNAVAILABLE."""

import asyncio
import time
from collections.abc import Callable
from threading import Event

import grpc
import pytest

from safe_psrl_client.errors import CancelledError, UnavailableError, error_of_call

METHOD = "/test.Service/Call"
WAITING = 4  # calls that arrive while the server is busy: it takes some, and stops before it takes the others
BUSY_SECONDS = 0.05


class StoppingServer:
    """Its event loop is busy during the first call, and stops the server at the end of it."""

    def __init__(self) -> None:
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self._handle)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Call": handler}),))
        self._busy = asyncio.Event()
        self.arrived: Callable[[], None] = lambda: None

    async def start(self) -> str:
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def _handle(self, request: bytes, _: grpc.aio.ServicerContext) -> bytes:
        if request == b"stop":
            self.arrived()
            asyncio.ensure_future(self._server.stop(5))  # noqa: RUF006  # the handler outlives the request to stop
            await asyncio.sleep(0)
        return request

    async def stopped(self) -> None:
        await self._server.wait_for_termination()


def failures_of_waiting_calls(target: str, server: StoppingServer) -> list[grpc.RpcError]:
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(METHOD)
        waiting: list[grpc.Future] = []

        def send_more() -> None:  # in the thread of the event loop, which is busy until this returns
            waiting.extend(call.future(b"more", timeout=10) for _ in range(WAITING))
            Event().wait(BUSY_SECONDS)

        server.arrived = send_more
        assert call(b"stop", timeout=10) == b"stop"
        return [error for error in (future.exception() for future in waiting) if error is not None]


async def test_calls_that_a_stopping_server_has_not_begun_are_unavailable() -> None:
    codes: set[grpc.StatusCode] = set()
    until = time.monotonic() + 30
    while grpc.StatusCode.CANCELLED not in codes:
        assert time.monotonic() < until, f"gRPC ended them with {codes}: if it was mended, remove ENDED_BY_SERVER"
        server = StoppingServer()
        for error in await asyncio.to_thread(failures_of_waiting_calls, await server.start(), server):
            codes.add(error.code())
            assert isinstance(error_of_call(error), UnavailableError)
        await server.stopped()


def test_a_call_that_the_client_cancelled_is_not() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        call = channel.unary_unary(METHOD).future(b"", wait_for_ready=True)
        call.cancel()
    with pytest.raises(grpc.FutureCancelledError):
        call.result()
    assert isinstance(error_of_call(call), CancelledError)
