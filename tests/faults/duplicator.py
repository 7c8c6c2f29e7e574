"""A gRPC proxy that knows messages as bytes only: it sends requests twice, some again much later, and holds replies back."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from tests.faults.proxy import LoopThread
from tests.system.server_process import CHANNEL

SERVICE = "/safe_psrl.v1.ControlService/"
STREAM = f"{SERVICE}StepStream"
# What carries a key that is known for good. A question without an episode has none, and may begin one whenever it comes.
MAY_COME_LATE = {f"{SERVICE}{call}" for call in ("ReportTransition", "Step", "ReportEpisode", "EndEpisode")}


class Duplicator(LoopThread, grpc.GenericRpcHandler):
    """In a thread. `repeat` and `late` are shares of the messages."""

    def __init__(self, target: str, chosen: random.Random) -> None:
        super().__init__()
        self.repeat = 0.0  # sent twice, at the same time or one after the other; the client gets either reply
        self.late = 0.0  # sent again up to two seconds later, when the call is over
        self.hold = 0.0  # most seconds that a reply is held back
        self.repeated = 0
        self._chosen = chosen
        self._to = target
        self.target = ""  # once started
        self._late: set[asyncio.Task[object]] = set()

    def settle(self) -> None:
        """Return when nothing more will come late."""
        self._run(self._settle())

    async def _listen(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._to, CHANNEL)
        self._server = grpc.aio.server(handlers=[self])
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def _settle(self) -> None:
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _close(self) -> None:
        await self._server.stop(1)
        await self._settle()
        await self._channel.close()

    def service(self, details: Any) -> Any:
        method = details.method
        if method == STREAM:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, method))
        return grpc.unary_unary_rpc_method_handler(partial(self._unary, method))

    # --- one message

    async def _unary(self, method: str, request: bytes, context: Any) -> bytes:
        send: Callable[..., Awaitable[bytes]] = self._channel.unary_unary(method)
        seconds = context.time_remaining()

        async def once() -> bytes:
            return await send(request, timeout=seconds)

        async def later() -> None:
            await asyncio.sleep(self._chosen.uniform(0.1, 2.0))
            await send(request, timeout=5)

        if method in MAY_COME_LATE and self._chosen.random() < self.late:
            self.repeated += 1
            task = asyncio.ensure_future(later())
            self._late.add(task)
            task.add_done_callback(self._forget)
        try:
            reply = await (self._twice(once) if self._chosen.random() < self.repeat else once())
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())
        await asyncio.sleep(self._chosen.uniform(0.0, self.hold))
        return reply

    async def _twice(self, once: Callable[[], Awaitable[bytes]]) -> bytes:
        self.repeated += 1
        if self._chosen.random() < 0.5:
            first = await once()
            second = await once()
        else:
            first, second = await asyncio.gather(once(), once())
        return self._chosen.choice([first, second])

    def _forget(self, task: "asyncio.Task[object]") -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # a repetition that comes too late may be refused

    # --- a stream: replies come in the order of the requests, so those to repetitions can be left out

    async def _stream(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        shown: list[bool] = []

        async def doubled() -> AsyncIterator[bytes]:
            async for request in requests:
                times = 2 if self._chosen.random() < self.repeat else 1
                self.repeated += times - 1
                shown.extend([True, *[False] * (times - 1)])
                for _ in range(times):
                    yield request

        open_stream: Any = self._channel.stream_stream(method)
        call = open_stream(doubled(), timeout=context.time_remaining())
        number = 0
        try:
            async for reply in call:
                if shown[number]:
                    yield reply
                number += 1
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details())
