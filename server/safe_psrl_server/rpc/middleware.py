"""Interceptors that surround every call with a context manager, whatever the method's type."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final

import grpc

from safe_psrl_proto.v1 import control_pb2

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
Handler = Any  # grpc.RpcMethodHandler, whose attributes the stubs leave out
Around = Callable[[Any, Context], AbstractAsyncContextManager[Any]]  # from the request to what the handler receives
Deserializer = Callable[[bytes], Any]
MAX_BATCH_CALLS: Final = 1024


class Middleware(grpc.aio.ServerInterceptor):
    """Wraps the handler of a method at its first call and keeps the result."""

    def __init__(self) -> None:
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            self.on_unknown_method()
            return None
        method: str = handler_call_details.method
        if method not in self._wrapped:
            self._wrapped[method] = self.wrap(method, handler)
        return self._wrapped[method]

    def wrap(self, method: str, handler: Handler) -> Handler:
        """The handler to use in place of `handler`."""
        raise NotImplementedError

    def on_unknown_method(self) -> None:
        """Called before gRPC answers a call to a method that does not exist."""


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
