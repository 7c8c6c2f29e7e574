"""A gRPC echo in the service's framework, grpc.aio on uvloop with default settings: the limit of `bench serve`.

`python -m safe_psrl_experiments.bench.echo_server MODE` prints its port and serves until it is killed. A call
returns its request:

- `bare`: at once;
- `durable`: after its own record of 100 bytes is on the disk;
- `group`: after a record that it shares with the calls that wait at the same time is on the disk (group commit).
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import uvloop

UNARY: Final = "/bench.Echo/Unary"
BARE, DURABLE, GROUP = "bare", "durable", "group"
ROOM: Final = 1 << 20  # bytes of the file, which is overwritten in a circle
RECORD: Final = bytes(100)

Unary = Callable[[bytes, Any], Awaitable[bytes]]


class RecordFile:
    """A file with its blocks allocated, so that a write does not change its metadata."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open until the process ends
        self._file.write(bytes(ROOM))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._offset = 0

    def append(self) -> None:
        os.pwrite(self._file.fileno(), RECORD, self._offset)
        os.fdatasync(self._file.fileno())
        self._offset = (self._offset + len(RECORD)) % (ROOM - len(RECORD))


class GroupCommit:
    """Calls that arrive during a write share the next one."""

    def __init__(self) -> None:
        self._file = RecordFile()
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None

    async def unary(self, request: bytes, _context: Any) -> bytes:
        durable = asyncio.get_running_loop().create_future()
        self._waiting.append(durable)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await durable
        return request

    async def _write(self) -> None:
        while self._waiting:
            calls, self._waiting = self._waiting, []
            await asyncio.to_thread(self._file.append)
            for call in calls:
                if not call.done():
                    call.set_result(None)


def _bare() -> Unary:
    async def unary(request: bytes, _context: Any) -> bytes:
        return request

    return unary


def _durable() -> Unary:
    file = RecordFile()

    async def unary(request: bytes, _context: Any) -> bytes:
        file.append()
        return request

    return unary


async def _serve(mode: str) -> None:
    modes: dict[str, Callable[[], Unary]] = {BARE: _bare, DURABLE: _durable, GROUP: lambda: GroupCommit().unary}
    unary: Any = modes[mode]()
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Unary": grpc.unary_unary_rpc_method_handler(unary)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201  # for the parent process
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
