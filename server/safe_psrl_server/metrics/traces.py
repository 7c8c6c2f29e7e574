"""Traces for an OpenTelemetry collector: a span for each call, plan and commit. Needs the extra `otlp`.

Spans of calls are made by OpenTelemetry's own interceptor, below the client's span if the call has a `traceparent`. A plan's
span is below its call's. A commit serves many calls, so its span is a trace by itself.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

import grpc
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from safe_psrl.version import __version__
from safe_psrl_server.metrics.meter import Meter

SERVICE: Final = {"service.name": "safe-psrl", "service.version": __version__}
EXPORT_SECONDS: Final = 2.0  # of one attempt to reach the collector; a stop waits for it


class TracedMeter(Meter):
    """A meter that also exports spans to the collector at `endpoint`, http://HOST:PORT or https://HOST:PORT."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self._provider = TracerProvider(resource=Resource.create(SERVICE))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)))
        self._tracer = self._provider.get_tracer("safe_psrl", __version__)

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        spans: Any = aio_server_interceptor  # it has no types
        return [spans(self._provider, filters.negate(filters.health_check()))]

    def planned(self, agent: str, episode: int, seconds: float, *, satisfiable: bool) -> None:
        super().planned(agent, episode, seconds, satisfiable=satisfiable)
        self._span("plan", seconds, {"safe_psrl.agent": agent, "safe_psrl.episode": episode}, None)

    def committed(self, seconds: float, events: int) -> None:
        super().committed(seconds, events)
        self._span("commit", seconds, {"safe_psrl.events": events}, Context())

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()

    def _span(self, name: str, seconds: float, attributes: Mapping[str, Any], parent: Context | None) -> None:
        """A span that ends now; without `parent`, below the one that the context has."""
        now = time.time_ns()
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=now - int(seconds * 1e9))
        span.end(now)
