"""A bare echo service in the service's own framework, grpc.aio on uvloop: what a call costs that does nothing.

`python -m safe_psrl_experiments.bench.echo_server` prints the port that it listens on, and serves until it is killed.
With `polite` its threads are scheduled as those of the service are; without, as the system does for everybody. (gRPC itself is
set up like the service's by the environment, `safe_psrl_server.transport`.) With `durable`
a call is answered when a record of a hundred bytes is on the disk, written as the service's log is.
"""

import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop

UNARY: Final = "/bench.Echo/Unary"
STREAM: Final = "/bench.Echo/Stream"
POLITE: Final = "polite"
DURABLE: Final = "durable"
ROOM: Final = 1 << 20  # bytes of a file that is written over and over
RECORD: Final = bytes(100)


async def _unary(request: bytes, _context: Any) -> bytes:
    return request


def _durable() -> Any:
    path = tempfile.mkstemp()[1]
    file = os.open(path, os.O_RDWR | os.O_DSYNC)
    Path(path).unlink()
    os.pwrite(file, bytes(ROOM), 0)
    os.fsync(file)
    place = 0

    async def unary(request: bytes, _context: Any) -> bytes:
        nonlocal place
        os.pwrite(file, RECORD, place)
        place = (place + len(RECORD)) % (ROOM - len(RECORD))
        return request

    return unary


async def _stream(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _serve() -> None:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_durable() if DURABLE in sys.argv else _unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201  # for the process that started this one
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve())
