"""What attackers send. Each function runs in a process of its own, for at most some seconds, and counts the answers."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status

Requests = Sequence[tuple[str, bytes]]  # method and serialised request
Metadata = tuple[tuple[str, str], ...]
Outcomes = dict[str, int]  # answers by "CODE" or "CODE REASON"; OK for none
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # each channel has its own connection
)
CALL_SECONDS = 30.0
WATCH = "/grpc.health.v1.Health/Watch"


class Sent(NamedTuple):
    """The answers to an attack, and the time that the longest of them took."""

    outcomes: Outcomes
    slowest: float
    with_retry_info: int = 0


def ready() -> None:
    """Called once in each process, which imports what is needed here."""


def credential(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),) if token else ()


@contextmanager
def connected(target: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target, OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(CALL_SECONDS)
        yield channel


def outcome_of(error: grpc.RpcError) -> tuple[str, bool]:
    """Code and reason, and whether the status has `RetryInfo`."""
    status = rpc_status.from_call(error)
    info, retry, reason, retries = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), "", False
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            reason = str(info.reason)
        retries = retries or detail.Unpack(retry)
    return f"{error.code().name} {reason}".strip(), retries


def send_bodies(
    target: str, token: str, method: str, body: tuple[bytes, int], *, gzip: bool, times: int, at_once: int, seconds: float
) -> Sent:
    """Call `method` with a body, a part repeated so many times, in `at_once` threads: `times` calls, or for `seconds`."""
    part, count = body
    data, compression = part * count, grpc.Compression.Gzip if gzip else None
    return _repeat(
        lambda channel: channel.unary_unary(method)(
            data, metadata=credential(token), timeout=CALL_SECONDS, compression=compression
        ),
        target,
        times,
        at_once,
        seconds,
    )


def send_requests(
    target: str,
    token: str,
    requests: Requests,
    *,
    times: int = 10**9,
    at_once: int = 1,
    seconds: float,
    call_seconds: float = CALL_SECONDS,
) -> Sent:
    """Make all calls one after the other, again and again, in `at_once` threads. Reads every stream to its end."""

    def send(channel: grpc.Channel) -> None:
        for method, request in requests:
            for _ in channel.unary_stream(method)(request, metadata=credential(token), timeout=call_seconds):
                pass

    return _repeat(send, target, times, at_once, seconds)


def send_loops(target: str, token: str, loops: Sequence[Requests], **how: Any) -> Sent:
    """The same with a thread for each of the loops, which differ."""
    with ThreadPoolExecutor(len(loops)) as threads:
        sent = list(threads.map(lambda loop: send_requests(target, token, loop, **how), loops))
    outcomes: Counter[str] = sum((Counter(each.outcomes) for each in sent), Counter())
    return Sent(dict(outcomes), max(each.slowest for each in sent))


def watch_health(target: str, streams: int, at_once: int, seconds: float) -> Sent:
    """Open `streams` watches without a credential, `at_once` on each connection; keep those that are admitted open."""
    counts, retries, request = Counter[str](), 0, health_pb2.HealthCheckRequest().SerializeToString()
    until = time.monotonic() + seconds
    with ExitStack() as connections:
        for _ in range(-(-streams // at_once)):
            channel = connections.enter_context(connected(target))
            for call in [channel.unary_stream(WATCH)(request, timeout=seconds) for _ in range(at_once)]:
                try:
                    next(call)
                    counts["OK"] += 1
                    connections.callback(call.cancel)
                except grpc.RpcError as error:
                    outcome, retry = outcome_of(error)
                    counts[outcome] += 1
                    retries += retry
        threading.Event().wait(max(0.0, until - time.monotonic()))
    return Sent(dict(counts), 0.0, retries)


def watch_agents(target: str, token: str, streams: int, request: bytes, seconds: float) -> Sent:
    """Read `streams` of WatchAgents, each in a thread and on a connection of its own."""
    counts, lock, until = Counter[str](), threading.Lock(), time.monotonic() + seconds

    def watch() -> None:
        with connected(target) as channel:
            left = until - time.monotonic()
            try:
                method = channel.unary_stream("/safe_psrl.v1.AdminService/WatchAgents")
                for _ in method(request, metadata=credential(token), timeout=left):
                    with lock:
                        counts["messages"] += 1
            except grpc.RpcError as error:
                with lock:
                    counts[outcome_of(error)[0]] += 1

    _in_threads(watch, streams)
    return Sent(dict(counts), 0.0)


def _repeat(send: Callable[[grpc.Channel], Any], target: str, times: int, at_once: int, seconds: float) -> Sent:
    counts, took, lock, until = Counter[str](), [0.0], threading.Lock(), time.monotonic() + seconds
    rest = iter(range(times))

    def some() -> None:
        with connected(target) as channel:
            while time.monotonic() < until:
                with lock:
                    if next(rest, None) is None:
                        return
                began = time.perf_counter()
                try:
                    send(channel)
                    outcome = "OK"
                except grpc.RpcError as error:
                    outcome = outcome_of(error)[0]
                with lock:
                    counts[outcome] += 1
                    took.append(time.perf_counter() - began)

    _in_threads(some, at_once)
    return Sent(dict(counts), max(took))


def _in_threads(work: Callable[[], None], number: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
