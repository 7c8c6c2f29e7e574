"""Traces: spans of calls, plans and commits reach a collector, below the client's span."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.instrumentation.grpc import GrpcInstrumentorClient
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider

from safe_psrl_client import Client, SafePsrlClientError
from safe_psrl_server.config import ConfigError
from safe_psrl_server.embedded import EmbeddedServer

SERVER_SPAN = 2


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OpenTelemetry collector that keeps what it receives."""

    def __init__(self) -> None:
        self.spans = list[Any]()
        self.services = set[str]()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802  # as generated
        for resource in request.resource_spans:
            self.services |= {entry.value.string_value for entry in resource.resource.attributes if entry.key == "service.name"}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name.rpartition("/")[2] == name]

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.stop()


def attributes(span: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}


def test_calls_plans_and_commits_have_spans(collector: Collector) -> None:
    with EmbeddedServer(otlp=collector.endpoint) as server, Client(server.target) as client:
        client.create_agent("buffer", "streaming-buffer", seed=1)
        client.get_action("buffer", 0)
        with pytest.raises(SafePsrlClientError):
            client.get_agent("missing")
    assert collector.services == {"safe-psrl"}
    (call,), (plan,), commits = collector.named("GetAction"), collector.named("plan"), collector.named("commit")
    assert call.kind == SERVER_SPAN
    assert (plan.trace_id, plan.parent_span_id) == (call.trace_id, call.span_id)
    assert call.start_time_unix_nano <= plan.start_time_unix_nano <= plan.end_time_unix_nano <= call.end_time_unix_nano
    assert attributes(plan) == {"safe_psrl.agent": "buffer", "safe_psrl.episode": 1}
    assert [attributes(commit)["safe_psrl.events"] for commit in commits[:2]] == [1, 1], "the creation, the episode"
    assert not any(commit.parent_span_id for commit in commits)
    (failed,) = collector.named("GetAgent")
    assert attributes(failed)["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]


def test_a_call_is_below_the_clients_span(collector: Collector) -> None:
    """With OpenTelemetry's instrumentation of gRPC in the client, which sends `traceparent`."""
    provider, instrumentor = TracerProvider(), GrpcInstrumentorClient()
    instrumentor.instrument(tracer_provider=provider)
    try:
        with EmbeddedServer(otlp=collector.endpoint) as server, Client(server.target) as client:
            with provider.get_tracer("test").start_as_current_span("environment") as outer:
                client.create_agent("buffer", "streaming-buffer", seed=1)
            client.get_action("buffer", 0)
    finally:
        instrumentor.uninstrument()
    (created,), (acted,) = collector.named("CreateAgent"), collector.named("GetAction")
    assert int.from_bytes(created.trace_id) == outer.get_span_context().trace_id != int.from_bytes(acted.trace_id)


def test_health_checks_have_no_spans(collector: Collector) -> None:
    with EmbeddedServer(otlp=collector.endpoint) as server, grpc.insecure_channel(server.target) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert not collector.named("Check")


WITHOUT = """
import sys
from safe_psrl_server.config import ServerConfig
from safe_psrl_server.server import Server

meter = Server(ServerConfig(store="memory:")).agents.meter
assert not list(meter.interceptors())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_without_a_collector_nothing_of_opentelemetry_is_loaded_or_called() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("[]\n", "")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "ftp://127.0.0.1:4317", "http://", "http://host"])
def test_an_address_without_scheme_or_port_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"otlp: .* must be http://HOST:PORT or https://HOST:PORT"):
        EmbeddedServer(otlp=endpoint).__enter__()
