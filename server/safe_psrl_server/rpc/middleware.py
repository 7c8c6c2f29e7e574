"""Putting something around the handlers of calls, whatever their type: once for each method, before the server starts.

gRPC's own interceptors are asked anew at every call, which costs a tenth of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

from safe_psrl_proto.v1 import control_pb2

Behaviour = Any  # what a handler calls: a coroutine function, or an async generator function if it streams its replies
Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
Handler = Any  # grpc.RpcMethodHandler, whose attributes the stubs leave out
Wrap = Callable[[Behaviour], Behaviour]
Deserializer = Callable[[bytes], Any]
MOST_CALLS: Final = 1024  # of a batch


@dataclass(frozen=True)
class Malformed:
    """Stands where a request would be whose bytes are no message. gRPC itself would answer such a call with UNKNOWN, and end
    a stream as if all were well."""

    problem: str


def tolerant(deserialize: Deserializer) -> Deserializer:
    """The same, but what cannot be read becomes `Malformed`."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception as error:  # noqa: BLE001  # protobuf raises a type of its own for every implementation
            return Malformed(str(error))

    return read


class Wrapper(Protocol):
    """Something around every call."""

    def wrap(self, method: str, handler: Handler) -> Handler:
        """The handler to use in place of `handler`."""
        ...

    def meet_unknown(self) -> None:
        """A call came that nobody handles; gRPC itself answers it."""
        ...


class WrappedHandlers(grpc.GenericRpcHandler):
    """All services of a server, with `wrappers` around their handlers, the first one outermost.

    Services are registered here as they would be with the server.
    """

    def __init__(self, wrappers: Sequence[Wrapper]) -> None:
        self._wrappers = wrappers
        self._services: list[grpc.GenericRpcHandler] = []
        self._known: dict[str, Handler] = {}  # by method

    def add_generic_rpc_handlers(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        self._services += services

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, Handler]) -> None:
        """The same ones again, for servers that look them up by name."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        known = self._known.get(handler_call_details.method)
        return known if known is not None else self._meet(handler_call_details)

    def _meet(self, details: grpc.HandlerCallDetails) -> Handler:
        handler: Handler = next((found for service in self._services if (found := service.service(details)) is not None), None)
        if handler is None:
            for wrapper in self._wrappers:
                wrapper.meet_unknown()
            return None
        for wrapper in reversed(self._wrappers):
            handler = wrapper.wrap(details.method, handler)
        self._known[details.method] = handler
        return handler


def rebuilt(handler: Handler, single: Wrap, streamed: Wrap, deserialize: Deserializer | None = None) -> Handler:
    """A handler of the same type around `handler`'s behaviour: `single` if it has one reply, `streamed` if many."""
    make, inner = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }[handler.request_streaming, handler.response_streaming]
    behaviour = (streamed if handler.response_streaming else single)(inner)
    return make(behaviour, deserialize or handler.request_deserializer, handler.response_serializer)


def calls_in(request: Any) -> int:
    """What a message counts for: a batch for what it holds, anything else for one.

    A batch that is too long is refused, however long it is, so it counts as the longest one that is not: counting takes
    time, and a message has room for millions of empty calls.
    """
    if not isinstance(request, control_pb2.StepStreamRequest):
        return 1
    return min(max(len(request.batch.calls), 1), MOST_CALLS)
