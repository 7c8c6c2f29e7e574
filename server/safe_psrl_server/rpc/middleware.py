"""What surrounds every call, whatever the method's type."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final, Protocol

import grpc

from safe_psrl_proto.v1 import control_pb2

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
Handler = Any  # grpc.RpcMethodHandler, whose attributes the stubs leave out
Around = Callable[[Any, Context], AbstractAsyncContextManager[Any]]  # from the request to what the handler receives
Deserializer = Callable[[bytes], Any]
MAX_BATCH_CALLS: Final = 1024


class Middleware(Protocol):
    """Something that surrounds every call."""

    def wrap(self, method: str, handler: Handler) -> Handler:
        """The handler to use in place of `handler`."""
        ...

    def on_unknown_method(self) -> None:
        """Called before gRPC answers a call to a method that does not exist."""
        ...


class Services(grpc.GenericRpcHandler):
    """The services of a server, registered here as with the server itself. Middleware surrounds each method's handler, the
    first one outermost. Handlers are wrapped once: two interceptors of grpc.aio took a third more CPU for an echo call.
    """

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware
        self._services: list[grpc.GenericRpcHandler] = []
        self._wrapped: dict[str, Handler] = {}  # by method

    def add_generic_rpc_handlers(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        self._services += services

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, Handler]) -> None:
        """The same handlers, for servers that look them up by name."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        method: str = handler_call_details.method
        if method in self._wrapped:
            return self._wrapped[method]
        found = (service.service(handler_call_details) for service in self._services)
        handler: Handler = next((each for each in found if each is not None), None)
        if handler is None:
            for middleware in self._middleware:
                middleware.on_unknown_method()
            return None
        for middleware in reversed(self._middleware):
            handler = middleware.wrap(method, handler)
        self._wrapped[method] = handler
        return handler


def surround(handler: Handler, around: Around, deserialize: Deserializer | None, on_reply: Callable[[], None]) -> Handler:
    """A handler of the same type that runs `handler` inside `around`. Without `deserialize`, `around` receives bytes."""
    make, behaviour = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }[handler.request_streaming, handler.response_streaming]

    async def single(request: Any, context: Context) -> Any:
        async with around(request, context) as received:
            reply = await behaviour(received, context)
            on_reply()
            return reply

    async def streamed(request: Any, context: Context) -> AsyncIterator[Any]:
        async with around(request, context) as received, aclosing(behaviour(received, context)) as replies:
            async for reply in replies:
                on_reply()
                yield reply

    return make(streamed if handler.response_streaming else single, deserialize, handler.response_serializer)


def calls_in(request: Any) -> int:
    """The number of calls that a message counts for: the length of a batch, 1 for anything else.

    A batch that is too long is rejected as a whole, so it counts as the longest valid one: a message has room for millions
    of empty calls.
    """
    if not isinstance(request, control_pb2.StepStreamRequest):
        return 1
    return min(max(len(request.batch.calls), 1), MAX_BATCH_CALLS)
