"""Interceptors that put something around the handlers of calls, whatever their type."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

Behaviour = Any  # what a handler calls: a coroutine function, or an async generator function if it streams its replies
Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
Handler = Any  # grpc.RpcMethodHandler, whose attributes the stubs leave out
Wrap = Callable[[Behaviour], Behaviour]
Deserializer = Callable[[bytes], Any]


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


class WrappingInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each method's handler once; one that an interceptor behind it exchanges is wrapped anew."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}  # as it was, as it is wrapped

    def wrap(self, method: str, handler: Handler) -> Handler:
        raise NotImplementedError

    def meet_unknown(self) -> None:
        """A call that nobody handles; gRPC itself answers it."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            self.meet_unknown()
            return None
        method: str = handler_call_details.method
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = handler, self.wrap(method, handler)
        return known[1]


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
