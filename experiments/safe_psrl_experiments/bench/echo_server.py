"""A bare echo service in the service's own framework, grpc.aio on uvloop: what a call costs that does nothing.

`python -m safe_psrl_experiments.bench.echo_server` prints the port that it listens on, and serves until it is killed.
With `polite` its threads are scheduled as those of the service are; without, as the system does for everybody.
"""

import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import uvloop

from safe_psrl_server.scheduling import wake_without_interrupting

UNARY: Final = "/bench.Echo/Unary"
STREAM: Final = "/bench.Echo/Stream"
POLITE: Final = "polite"


async def _unary(request: bytes, _context: Any) -> bytes:
    return request


async def _stream(requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _serve() -> None:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201  # for the process that started this one
    await server.wait_for_termination()


if __name__ == "__main__":
    if POLITE in sys.argv:
        wake_without_interrupting()
    uvloop.run(_serve())
