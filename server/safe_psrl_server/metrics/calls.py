"""The five metrics that gRPC servers have everywhere, counted by an interceptor."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final, Self

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from safe_psrl_server.interception import Behaviour, Context, Handler, WrappingInterceptor, rebuilt

LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
UNKNOWN: Final = "unknown"


class _Method:
    """The counters of one method, bound to its labels once."""

    def __init__(self, families: "_Families", *labels: str) -> None:
        self._labels = labels
        self._families = families
        self.started = families.started.labels(*labels)
        self.received = families.received.labels(*labels)
        self.sent = families.sent.labels(*labels)
        self._seconds = families.seconds.labels(*labels)
        self._handled: dict[grpc.StatusCode, Counter] = {}

    def begin(self) -> float:
        self.started.inc()
        return time.perf_counter()

    def end(self, began: float, code: grpc.StatusCode) -> None:
        handled = self._handled.get(code)
        if handled is None:
            handled = self._handled[code] = self._families.handled.labels(*self._labels, code.name)
        handled.inc()
        self._seconds.observe(time.perf_counter() - began)


class _Families:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.started = Counter("grpc_server_started", "Calls that came in.", LABELS, registry=registry)
        self.handled = Counter(
            "grpc_server_handled",
            "Calls that ended, by code. Fewer than started for long means calls that hang; for codes but OK see "
            "safe_psrl_rejections_total.",
            (*LABELS, "grpc_code"),
            registry=registry,
        )
        self.received = Counter("grpc_server_msg_received", "Messages received.", LABELS, registry=registry)
        self.sent = Counter("grpc_server_msg_sent", "Messages sent.", LABELS, registry=registry)
        self.seconds = Histogram(
            "grpc_server_handling_seconds",
            "Time from a call's arrival to its end. Rising means slow commits (safe_psrl_store_commit_seconds), long plans "
            "(safe_psrl_plan_duration_seconds) or a busy machine.",
            LABELS,
            registry=registry,
            buckets=BUCKETS,
        )


class CallCounter(WrappingInterceptor):
    """Counts every call of async handlers. A method has labels only if somebody handles it; all others share one set."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._families = _Families(registry)
        self._methods: dict[str, _Method] = {}

    def wrap(self, method: str, handler: Handler) -> Handler:
        counted, streams = self._method(method, _type_of(handler)), bool(handler.request_streaming)
        return rebuilt(
            handler, lambda inner: _single(inner, counted, streams), lambda inner: _streamed(inner, counted, streams)
        )

    def meet_unknown(self) -> None:
        unknown = self._method(f"/{UNKNOWN}/{UNKNOWN}", "unary")
        unknown.end(unknown.begin(), grpc.StatusCode.UNIMPLEMENTED)

    def _method(self, name: str, kind: str) -> _Method:
        if name not in self._methods:
            service, _, method = name.removeprefix("/").rpartition("/")
            self._methods[name] = _Method(self._families, kind, service, method)
        return self._methods[name]


class _CountedRequests:
    """The messages of a client's stream."""

    def __init__(self, requests: AsyncIterator[Any], method: _Method) -> None:
        self._requests = requests
        self._iterator: AsyncIterator[Any] | None = None  # not before the first is asked for: gRPC warns of unused ones
        self._received = method.received

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._requests.__aiter__()
        request = await self._iterator.__anext__()
        self._received.inc()
        return request


def _type_of(handler: Handler) -> str:
    if handler.request_streaming:
        return "bidi_stream" if handler.response_streaming else "client_stream"
    return "server_stream" if handler.response_streaming else "unary"


def _single(inner: Behaviour, method: _Method, request_streaming: bool) -> Behaviour:
    async def call(request: Any, context: Context) -> Any:
        began = method.begin()
        try:
            response = await inner(_received(request, method, request_streaming), context)
        except BaseException as error:
            method.end(began, _code_of_failure(error, context))
            raise
        method.sent.inc()
        method.end(began, context.code() or grpc.StatusCode.OK)
        return response

    return call


def _streamed(inner: Behaviour, method: _Method, request_streaming: bool) -> Behaviour:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        began = method.begin()
        try:
            async with aclosing(inner(_received(request, method, request_streaming), context)) as responses:
                async for response in responses:
                    method.sent.inc()
                    yield response
        except BaseException as error:
            method.end(began, _code_of_failure(error, context))
            raise
        method.end(began, context.code() or grpc.StatusCode.OK)

    return call


def _received(request: Any, method: _Method, streaming: bool) -> Any:
    if streaming:
        return _CountedRequests(request, method)
    method.received.inc()
    return request


def _code_of_failure(error: BaseException, context: Context) -> grpc.StatusCode:
    """What the client sees, or would see if it had not gone away. A handler's task is cancelled at its deadline too."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        remaining = context.time_remaining()
        expired = remaining is not None and remaining <= 0
        return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
    code: grpc.StatusCode | None = context.code()  # set by `abort`
    return code or grpc.StatusCode.UNKNOWN
