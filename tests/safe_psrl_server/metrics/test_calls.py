"""The standard metrics of a gRPC server: every call is counted once, whatever becomes of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc
import pytest
from prometheus_client import CollectorRegistry

from safe_psrl_server.config import Limits, Quotas
from safe_psrl_server.metrics.calls import CallMetrics
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.rpc.errors import Rejections
from safe_psrl_server.rpc.middleware import Services
from safe_psrl_server.security.access import AccessControl
from safe_psrl_server.security.roles import RULES, Rule, Scope


class Echo(grpc.GenericRpcHandler):
    """A method of each type. A message says what is to become of its call."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self._handlers = {
            "/test.Echo/Unary": grpc.unary_unary_rpc_method_handler(self.unary, bytes),
            "/test.Echo/Download": grpc.unary_stream_rpc_method_handler(self.download, bytes),
            "/test.Echo/Upload": grpc.stream_unary_rpc_method_handler(self.upload, bytes),
            "/test.Echo/Both": grpc.stream_stream_rpc_method_handler(self.both, bytes),
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(details.method)

    async def unary(self, request: bytes, context: Any) -> bytes:
        await self.become(request, context)
        return request

    async def download(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            for _ in range(3):
                yield request
            while request == b"flood":
                yield bytes(1_000_000)
            await self.become(request, context)
        finally:
            self.left.set()

    async def upload(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        last = b""
        async for request in requests:
            await self.become(request, context)
            last = request
        return last

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            await self.become(request, context)
            yield request

    async def become(self, request: bytes, context: Any) -> None:
        if request == b"abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no")
        if request == b"fail":
            raise ValueError("a mistake of the server")
        if request == b"hang":
            self.entered.set()
            await asyncio.Event().wait()


class Counted(NamedTuple):
    channel: grpc.aio.Channel
    registry: CollectorRegistry
    echo: Echo

    def value(self, name: str, method: str, kind: str, **labels: str) -> float:
        labels |= {"grpc_type": kind, "grpc_service": "test.Echo", "grpc_method": method}
        return self.registry.get_sample_value(f"grpc_server_{name}", labels) or 0.0

    async def until_handled(self, method: str, kind: str, code: str, count: float = 1) -> None:
        """The server notices a little later than the client."""
        async with asyncio.timeout(20):
            while self.value("handled_total", method, kind, grpc_code=code) < count:  # noqa: ASYNC110  # counters wake nobody
                await asyncio.sleep(0.005)
        handled = [s for family in self.registry.collect() for s in family.samples if s.name == "grpc_server_handled_total"]
        of_method = [sample for sample in handled if sample.labels["grpc_method"] == method]
        assert sum(sample.value for sample in of_method) == self.value("started_total", method, kind)
        assert sum(sample.value for sample in of_method) == self.value("handling_seconds_count", method, kind)


ENDED_BY_DEADLINE = ("DEADLINE_EXCEEDED", "CANCELLED")


@pytest.fixture
async def counted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counted]:
    registry, echo, server = CollectorRegistry(), Echo(), grpc.aio.server()
    for method in TYPES:
        monkeypatch.setitem(RULES, f"/test.Echo/{method}", Rule(None, Scope.NONE, public=True))
    access = AccessControl(None, Quotas(), Limits())
    services = Services(CallMetrics(registry), access, Rejections(Meter()), idle_seconds=60.0)
    services.add_generic_rpc_handlers([echo])
    server.add_generic_rpc_handlers((services,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Counted(channel, registry, echo)
    await server.stop(None)


async def code_of(call: Any) -> grpc.StatusCode:
    """How a call ended, whose replies are read to the end."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.RpcError:
        pass
    code: grpc.StatusCode = await call.code()
    return code


async def sending(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


Call = Callable[[grpc.aio.Channel, bytes], Any]
TYPES: dict[str, tuple[str, Call, int, int]] = {  # method: type, how it is called, messages received and sent if all is well
    "Unary": ("unary", lambda channel, last: channel.unary_unary("/test.Echo/Unary")(last), 1, 1),
    "Download": ("server_stream", lambda channel, last: channel.unary_stream("/test.Echo/Download")(last), 1, 3),
    "Upload": ("client_stream", lambda channel, last: channel.stream_unary("/test.Echo/Upload")(sending(b"a", last)), 2, 1),
    "Both": ("bidi_stream", lambda channel, last: channel.stream_stream("/test.Echo/Both")(sending(b"a", last)), 2, 2),
}


@pytest.mark.parametrize("method", TYPES)
async def test_a_call_that_succeeds_is_counted_with_its_messages(counted: Counted, method: str) -> None:
    kind, call, received, sent = TYPES[method]
    for number in range(1, 4):
        assert await code_of(call(counted.channel, b"x")) == grpc.StatusCode.OK
        await counted.until_handled(method, kind, "OK", number)
        assert counted.value("started_total", method, kind) == number
        assert counted.value("msg_received_total", method, kind) == received * number
        assert counted.value("msg_sent_total", method, kind) == sent * number
    assert 0 < counted.value("handling_seconds_sum", method, kind) < 60


@pytest.mark.parametrize("method", TYPES)
@pytest.mark.parametrize(("message", "code"), [(b"abort", "NOT_FOUND"), (b"fail", "UNKNOWN")])
async def test_a_call_that_is_aborted_or_fails_is_counted_with_the_code_that_the_client_sees(
    counted: Counted, method: str, message: bytes, code: str
) -> None:
    kind, call, received, _ = TYPES[method]
    assert await code_of(call(counted.channel, message)) == grpc.StatusCode[code]
    await counted.until_handled(method, kind, code)
    assert counted.value("msg_received_total", method, kind) == received


@pytest.mark.parametrize("method", TYPES)
async def test_a_call_that_its_client_cancels_is_counted_as_that(counted: Counted, method: str) -> None:
    kind, call, _, _ = TYPES[method]
    under_way = call(counted.channel, b"hang")
    async with asyncio.timeout(20):
        await counted.echo.entered.wait()
    assert counted.value("started_total", method, kind) == 1
    assert counted.value("handling_seconds_count", method, kind) == 0
    under_way.cancel()
    await counted.until_handled(method, kind, "CANCELLED")


async def test_a_call_that_runs_out_of_time_is_counted_as_that(counted: Counted) -> None:
    call = counted.channel.unary_unary("/test.Echo/Unary")(b"hang", timeout=0.2)
    assert await code_of(call) == grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(20):  # the client cancels the call at its deadline: the server sees either first
        while not any(  # noqa: ASYNC110  # counters wake nobody
            counted.value("handled_total", "Unary", "unary", grpc_code=code) for code in ENDED_BY_DEADLINE
        ):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("message", [b"hang", b"flood"])
async def test_a_stream_that_its_client_leaves_ends_in_the_handler_too(counted: Counted, message: bytes) -> None:
    """Whether the handler is waiting for something, or for its client to read on."""
    call = counted.channel.unary_stream("/test.Echo/Download")(message)
    await call.read()
    call.cancel()
    await counted.until_handled("Download", "server_stream", "CANCELLED")
    assert counted.echo.left.is_set()


async def test_methods_that_nobody_handles_share_one_series(counted: Counted) -> None:
    """Or any client could make as many as it likes."""
    for number in range(5):
        call = counted.channel.unary_unary(f"/invented.Service{number}/Method{number}")(b"")
        assert await code_of(call) == grpc.StatusCode.UNIMPLEMENTED
    samples = [s for family in counted.registry.collect() for s in family.samples if s.name == "grpc_server_handled_total"]
    (sample,) = samples
    assert sample.value == 5
    assert sample.labels == {
        "grpc_type": "unary",
        "grpc_service": "unknown",
        "grpc_method": "unknown",
        "grpc_code": "UNIMPLEMENTED",
    }
