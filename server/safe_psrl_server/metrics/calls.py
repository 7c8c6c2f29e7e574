"""The five metrics that gRPC servers have everywhere, counted around the handlers."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from itertools import accumulate
from typing import Any, Final, Self

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from safe_psrl_server.rpc.middleware import Behaviour, Context, Handler, Wrapper, rebuilt

LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
UNKNOWN: Final = "unknown"


class _Method:
    """The counts of one method. Plain numbers, which only the loop changes: a call costs a few additions."""

    def __init__(self, *labels: str) -> None:
        self.labels = labels
        self.started = 0
        self.received = 0
        self.sent = 0
        self.handled: dict[str, int] = {}  # by code
        self.seconds = 0.0
        self.within = [0] * (len(BUCKETS) + 1)  # calls that took as long as each bucket allows, and longer than the one before

    def begin(self) -> float:
        self.started += 1
        return time.perf_counter()

    def end(self, began: float, code: grpc.StatusCode) -> None:
        seconds = time.perf_counter() - began
        name: str = code.name
        self.handled[name] = self.handled.get(name, 0) + 1
        self.seconds += seconds
        self.within[bisect_left(BUCKETS, seconds)] += 1


class _Calls(Collector):
    """The counts of all methods, as a scrape sees them."""

    def __init__(self) -> None:
        self.methods: dict[str, _Method] = {}

    def collect(self) -> Iterator[Metric]:
        started = CounterMetricFamily("grpc_server_started", "Calls that came in.", labels=LABELS)
        handled = CounterMetricFamily(
            "grpc_server_handled",
            "Calls that ended, by code. Fewer than started for long means calls that hang; for codes but OK see "
            "safe_psrl_rejections_total.",
            labels=(*LABELS, "grpc_code"),
        )
        received = CounterMetricFamily("grpc_server_msg_received", "Messages received.", labels=LABELS)
        sent = CounterMetricFamily("grpc_server_msg_sent", "Messages sent.", labels=LABELS)
        seconds = HistogramMetricFamily(
            "grpc_server_handling_seconds",
            "Time from a call's arrival to its end. Rising means slow commits (safe_psrl_store_commit_seconds), long plans "
            "(safe_psrl_plan_duration_seconds) or a busy machine.",
            labels=LABELS,
        )
        for method in list(self.methods.values()):
            started.add_metric(method.labels, method.started)
            received.add_metric(method.labels, method.received)
            sent.add_metric(method.labels, method.sent)
            for code, count in list(method.handled.items()):
                handled.add_metric((*method.labels, code), count)
            bounds = [*map(str, BUCKETS), "+Inf"]
            buckets = list(zip(bounds, accumulate(method.within), strict=True))
            seconds.add_metric(method.labels, buckets, method.seconds)
        yield from (started, handled, received, sent, seconds)


class CallCounter(Wrapper):
    """Counts every call of async handlers. A method has labels only if somebody handles it; all others share one set."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = _Calls()
        registry.register(self._calls)

    def wrap(self, method: str, handler: Handler) -> Handler:
        counted, streams = self._method(method, _type_of(handler)), bool(handler.request_streaming)
        return rebuilt(
            handler, lambda inner: _single(inner, counted, streams), lambda inner: _streamed(inner, counted, streams)
        )

    def meet_unknown(self) -> None:
        unknown = self._method(f"/{UNKNOWN}/{UNKNOWN}", "unary")
        unknown.end(unknown.begin(), grpc.StatusCode.UNIMPLEMENTED)

    def _method(self, name: str, kind: str) -> _Method:
        methods = self._calls.methods
        if name not in methods:
            service, _, method = name.removeprefix("/").rpartition("/")
            methods[name] = _Method(kind, service, method)
        return methods[name]


class _CountedRequests:
    """The messages of a client's stream."""

    def __init__(self, requests: AsyncIterator[Any], method: _Method) -> None:
        self._requests = requests
        self._iterator: AsyncIterator[Any] | None = None  # not before the first is asked for: gRPC warns of unused ones
        self._method = method

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._requests.__aiter__()
        request = await self._iterator.__anext__()
        self._method.received += 1
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
        method.sent += 1
        method.end(began, context.code() or grpc.StatusCode.OK)
        return response

    return call


def _streamed(inner: Behaviour, method: _Method, request_streaming: bool) -> Behaviour:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        began = method.begin()
        try:
            async with aclosing(inner(_received(request, method, request_streaming), context)) as responses:
                async for response in responses:
                    method.sent += 1
                    yield response
        except BaseException as error:
            method.end(began, _code_of_failure(error, context))
            raise
        method.end(began, context.code() or grpc.StatusCode.OK)

    return call


def _received(request: Any, method: _Method, streaming: bool) -> Any:
    if streaming:
        return _CountedRequests(request, method)
    method.received += 1
    return request


def _code_of_failure(error: BaseException, context: Context) -> grpc.StatusCode:
    """What the client sees, or would see if it had not gone away. A handler's task is cancelled at its deadline too."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        remaining = context.time_remaining()
        expired = remaining is not None and remaining <= 0
        return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
    code: grpc.StatusCode | None = context.code()  # set by `abort`
    return code or grpc.StatusCode.UNKNOWN
