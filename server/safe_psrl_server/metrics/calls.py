"""The standard metrics of a gRPC server: calls started and handled, messages, handling time."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
UNKNOWN_METHOD: Final = ("unary", "unknown", "unknown")  # shared by all unknown methods: clients must not create series
TYPES: Final = {
    (False, False): "unary",
    (False, True): "server_stream",
    (True, False): "client_stream",
    (True, True): "bidi_stream",
}


class CallMetrics:
    """The metrics of all methods."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.started = Counter("grpc_server_started", "Calls received.", LABELS, registry=registry)
        self.handled = Counter(
            "grpc_server_handled",
            "Calls completed, by status code. Staying below grpc_server_started means calls that hang; for codes other than OK "
            "see safe_psrl_rejections_total.",
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
            buckets=BUCKETS,
            registry=registry,
        )

    def method(self, method: str, request_streaming: bool, response_streaming: bool) -> "Callable[[Context], CountedCall]":
        """Counts one call of `method` for each context that it receives."""
        service, _, name = method.removeprefix("/").rpartition("/")
        counters = _MethodCounters(self, (TYPES[request_streaming, response_streaming], service, name))
        return lambda context: CountedCall(counters, context)

    def count_unknown_method(self) -> None:
        self.started.labels(*UNKNOWN_METHOD).inc()
        self.handled.labels(*UNKNOWN_METHOD, grpc.StatusCode.UNIMPLEMENTED.name).inc()
        self.seconds.labels(*UNKNOWN_METHOD).observe(0.0)


class _MethodCounters:
    """The series of one method, looked up once."""

    def __init__(self, metrics: CallMetrics, labels: tuple[str, str, str]) -> None:
        self.started = metrics.started.labels(*labels)
        self.received = metrics.received.labels(*labels)
        self.sent = metrics.sent.labels(*labels)
        self.seconds = metrics.seconds.labels(*labels)
        self._handled = metrics.handled
        self._labels = labels
        self._by_code: dict[grpc.StatusCode, Counter] = {}

    def handled(self, code: grpc.StatusCode) -> Counter:
        if code not in self._by_code:
            self._by_code[code] = self._handled.labels(*self._labels, code.name)
        return self._by_code[code]


class CountedCall:
    """One call, from its arrival to its end: a context manager."""

    __slots__ = ("_began", "_context", "_counters", "agent", "received", "sent")

    def __init__(self, counters: _MethodCounters, context: Context) -> None:
        self.agent = ""  # that the call is about, once it is known
        self.received = counters.received.inc
        self.sent = counters.sent.inc
        self._counters = counters
        self._context = context

    def __enter__(self) -> Self:
        self._counters.started.inc()
        self._began = time.perf_counter()
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        code = _code_of(error, self._context)
        self._counters.handled(code).inc()
        self._counters.seconds.observe(time.perf_counter() - self._began)


def _code_of(error: BaseException | None, context: Context) -> grpc.StatusCode:
    """The code that the client sees, or would see if it were still connected. A handler is also cancelled at its deadline."""
    code: grpc.StatusCode | None = context.code()  # set by `abort`
    if error is None:
        return code or grpc.StatusCode.OK
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        remaining = context.time_remaining()
        expired = remaining is not None and remaining <= 0
        return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
    return code or grpc.StatusCode.UNKNOWN
