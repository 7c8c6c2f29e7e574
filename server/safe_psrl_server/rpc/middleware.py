"""Wraps every call, whatever the method's type: counts, admits and parses it, and converts errors to statuses.

Handlers are wrapped once: two interceptors of grpc.aio took a third more CPU for an echo call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc

from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.errors import InvalidArgumentError, ServiceError, UnavailableError
from safe_psrl_server.metrics.calls import CallMetrics, CountedCall
from safe_psrl_server.rpc.errors import Rejections
from safe_psrl_server.rpc.wire import checking_fields
from safe_psrl_server.security.access import AccessControl, check_role
from safe_psrl_server.security.caller import Caller

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
Handler = Any  # grpc.RpcMethodHandler, whose attributes the stubs leave out
Parse = Callable[[bytes], Any]
MAX_BATCH_CALLS: Final = 1024


class Services(grpc.GenericRpcHandler):
    """The services of a server, registered here as with the server itself."""

    def __init__(self, metrics: CallMetrics, access: AccessControl, rejections: Rejections, idle_seconds: float) -> None:
        self._metrics = metrics
        self._access = access
        self._rejections = rejections
        self._idle_seconds = idle_seconds
        self._services: list[grpc.GenericRpcHandler] = []
        self._wrapped: dict[str, Handler] = {}  # by method

    def add_generic_rpc_handlers(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        self._services += services

    def add_registered_method_handlers(self, _service: str, _handlers: Mapping[str, Handler]) -> None:
        """The same handlers, for servers that look them up by name."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        method: str = handler_call_details.method
        if method not in self._wrapped:
            found = (service.service(handler_call_details) for service in self._services)
            handler: Handler = next((each for each in found if each is not None), None)
            if handler is None:
                self._metrics.count_unknown_method()
                return None
            self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]

    def _wrap(self, method: str, handler: Handler) -> Handler:
        """A handler of the same type. It receives bytes: credentials are checked before a body is parsed."""
        make, behaviour = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
        }[handler.request_streaming, handler.response_streaming]
        rule, parse = self._access.rule(method), handler.request_deserializer
        count = self._metrics.method(method, handler.request_streaming, handler.response_streaming)

        async def received(call: CountedCall, request: Any, caller: Caller | None) -> Any:
            """The request, or the messages of a client's stream, from an admitted caller."""
            if handler.request_streaming:
                check_role(caller, rule)
                return self._messages(call, request, parse, caller)
            call.received()
            message = await parsed(parse, request)
            call.agent = getattr(message, "agent", "")
            check_role(caller, rule, message)
            return message

        async def single(request: Any, context: Context) -> Any:
            with count(context) as call:
                try:
                    with self._access.admit(context, rule) as caller:
                        reply = await behaviour(await received(call, request, caller), context)
                        call.sent()
                        return reply
                except ServiceError as error:
                    await self._rejections.abort(context, error, call.agent)

        async def streamed(request: Any, context: Context) -> AsyncIterator[Any]:
            with count(context) as call:
                try:
                    with self._access.admit(context, rule) as caller:
                        async with aclosing(behaviour(await received(call, request, caller), context)) as replies:
                            async for reply in replies:
                                call.sent()
                                yield reply
                except ServiceError as error:
                    await self._rejections.abort(context, error, call.agent)

        return make(streamed if handler.response_streaming else single, None, handler.response_serializer)

    async def _messages(
        self, call: CountedCall, requests: AsyncIterator[bytes], parse: Parse, caller: Caller | None
    ) -> AsyncIterator[Any]:
        """The messages of a client's stream. Each counts as a call and must arrive within the idle time.

        Messages above the rate are not rejected but read later, so that flow control slows the client down.
        """
        incoming = aiter(requests)
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    data = await anext(incoming, None)
            except TimeoutError:
                idle = f"no message for {self._idle_seconds:g} s; open another stream"
                raise UnavailableError(idle, "STREAM_IDLE") from None
            if data is None:
                return
            call.received()
            message = await parsed(parse, data)
            if caller is not None:
                await self._access.pace(caller, calls_in(message))
            yield message


async def parsed(parse: Parse, data: bytes) -> Any:
    """The parsed request. Raises `InvalidArgumentError`; gRPC would return UNKNOWN, or end a stream as if it were complete."""
    message: Any = getattr(parse, "__self__", None)  # the class whose `FromString` it is
    if message is not None:
        for _ in checking_fields(data, message.DESCRIPTOR):
            await asyncio.sleep(0)
    try:
        return parse(data)
    except Exception as error:  # noqa: BLE001  # each protobuf implementation raises its own type
        raise InvalidArgumentError("request", f"cannot be parsed: {error}", "MALFORMED_REQUEST") from None


def calls_in(request: Any) -> int:
    """The number of calls that a message counts for: the length of a batch, 1 for anything else.

    A batch that is too long is rejected as a whole, so it counts as the longest valid one: a message has room for millions
    of empty calls.
    """
    if not isinstance(request, control_pb2.StepStreamRequest):
        return 1
    return min(max(len(request.batch.calls), 1), MAX_BATCH_CALLS)
