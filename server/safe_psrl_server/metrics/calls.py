"""The standard metrics of a gRPC server: calls started and handled, messages, handling time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from safe_psrl_server.rpc.middleware import Context, Handler, Middleware, surround

LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
UNKNOWN_METHOD: Final = ("unary", "unknown", "unknown")  # shared by all unknown methods: clients must not create series


class CallMetrics(Middleware):
    """Counts every call. Must be outermost, so that calls rejected by others are counted too."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = Counter("grpc_server_started", "Calls received.", LABELS, registry=registry)
        self._handled = Counter(
            "grpc_server_handled",
            "Calls completed, by status code. Staying below grpc_server_started means calls that hang; for codes other than OK "
            "see safe_psrl_rejections_total.",
            (*LABELS, "grpc_code"),
            registry=registry,
        )
        self._received = Counter("grpc_server_msg_received", "Messages received.", LABELS, registry=registry)
        self._sent = Counter("grpc_server_msg_sent", "Messages sent.", LABELS, registry=registry)
        self._seconds = Histogram(
            "grpc_server_handling_seconds",
            "Time from a call's arrival to its end. Rising means slow commits (safe_psrl_store_commit_seconds), long plans "
            "(safe_psrl_plan_duration_seconds) or a busy machine.",
            LABELS,
            buckets=BUCKETS,
            registry=registry,
        )

    def wrap(self, method: str, handler: Handler) -> Handler:
        service, _, name = method.removeprefix("/").rpartition("/")
        labels = (_type_of(handler), service, name)
        started, received = self._started.labels(*labels), self._received.labels(*labels)
        seconds = self._seconds.labels(*labels)

        @asynccontextmanager
        async def count(request: Any, context: Context) -> AsyncIterator[Any]:
            started.inc()
            began = time.perf_counter()
            code = grpc.StatusCode.OK
            try:
                if handler.request_streaming:
                    yield _counted(request, received.inc)
                else:
                    received.inc()
                    yield request
                code = context.code() or code
            except BaseException as error:
                code = _code_of_failure(error, context)
                raise
            finally:
                self._handled.labels(*labels, code.name).inc()
                seconds.observe(time.perf_counter() - began)

        return surround(handler, count, handler.request_deserializer, self._sent.labels(*labels).inc)

    def on_unknown_method(self) -> None:
        self._started.labels(*UNKNOWN_METHOD).inc()
        self._handled.labels(*UNKNOWN_METHOD, grpc.StatusCode.UNIMPLEMENTED.name).inc()
        self._seconds.labels(*UNKNOWN_METHOD).observe(0.0)


async def _counted(requests: AsyncIterator[Any], on_request: Callable[[], None]) -> AsyncIterator[Any]:
    async for request in requests:
        on_request()
        yield request


def _type_of(handler: Handler) -> str:
    if handler.request_streaming:
        return "bidi_stream" if handler.response_streaming else "client_stream"
    return "server_stream" if handler.response_streaming else "unary"


def _code_of_failure(error: BaseException, context: Context) -> grpc.StatusCode:
    """The code that the client sees, or would see if it were still connected. A handler is also cancelled at its deadline."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        remaining = context.time_remaining()
        expired = remaining is not None and remaining <= 0
        return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
    code: grpc.StatusCode | None = context.code()  # set by `abort`
    return code or grpc.StatusCode.UNKNOWN
