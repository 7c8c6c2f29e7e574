"""A TCP proxy between clients and server, in a thread: it delays, cuts in mid-message, and swallows."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Self

CHUNK = 65_536


class LoopThread:
    """An event loop in a thread, between `start` and `close`, which run `_listen` and `_close` there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError


class TcpProxy(LoopThread):
    """Forwards bytes; the attributes that disturb it may be changed at any time."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.delay = 0.0  # seconds that each piece waits, either way
        self.swallow = False  # nothing gets through, and no error is reported
        self.cuts = 0  # connections that were cut
        self._left: int | None = None  # bytes until a cut
        self._host, _, port = target.rpartition(":")
        self._to = int(port)
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def target(self) -> str:
        return f"{self._host}:{self._server.sockets[0].getsockname()[1]}"

    def cut_after(self, count: int) -> None:
        """All connections, once so many more bytes have passed: in the midst of a message, where the number falls so."""
        self._loop.call_soon_threadsafe(setattr, self, "_left", count)

    def cut(self) -> None:
        """All connections at once, with what they hold."""
        self._loop.call_soon_threadsafe(self._abort)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, 0)

    async def _close(self) -> None:
        self._server.close()
        self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _abort(self) -> None:
        self.cuts += len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        finally:
            self._writers -= {writer, back}
            writer.transport.abort()
            back.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.swallow:
                    continue
                if self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        writer.write(data[: len(data) + self._left])  # only a part of it
                        await writer.drain()
                        self._left = None
                        self._abort()
                        return
                writer.write(data)
                await writer.drain()
            writer.close()
