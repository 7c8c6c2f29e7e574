"""Which failures are retried, for how long, and which are not."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from safe_psrl_client import errors
from safe_psrl_client.aio import retry as aio_retry
from safe_psrl_client.sync import retry as sync_retry


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)

    monkeypatch.setattr(sync_retry, "time", clock)
    monkeypatch.setattr(aio_retry, "time", clock)
    monkeypatch.setattr(aio_retry, "asyncio", SimpleNamespace(sleep=sleep))  # servers of other tests sleep in their threads
    return clock


@pytest.fixture(params=["sync", "asyncio"])
def retry(request: pytest.FixtureRequest, clock: Clock) -> Callable[..., str]:
    """Retries a call that fails with the given errors, one after the other, and then succeeds."""

    def run(seconds: float, *failures: errors.SafePsrlClientError, reached: bool = True) -> str:
        left = list(failures)
        contact = sync_retry.FirstContact("far:1", 1.5)
        contact.made = reached

        def call() -> str:
            if left:
                raise left.pop(0)
            return "done"

        async def async_call() -> str:
            return call()

        assert clock.now == 0
        if request.param == "sync":
            return sync_retry.retry(call, seconds, contact)
        return asyncio.run(aio_retry.retry(async_call, seconds, contact))

    return run


def test_unavailable_is_retried_with_growing_pauses(clock: Clock, retry: Callable[..., str]) -> None:
    assert retry(30, *[errors.UnavailableError("away")] * 3) == "done"
    assert len(clock.pauses) == 3
    for pause, longest in zip(clock.pauses, (0.05, 0.1, 0.2), strict=True):
        assert longest / 2 <= pause <= longest


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidArgumentError,
        errors.EpisodeClosedError,
        errors.DataLossError,
        errors.DeadlineExceededError,
        errors.AbortedError,
        errors.ResourceExhaustedError,
    ],
)
def test_no_other_status_is_retried(clock: Clock, retry: Callable[..., str], kind: type[errors.SafePsrlClientError]) -> None:
    with pytest.raises(kind):
        retry(30, kind("no", retry_after=1.0))
    assert clock.pauses == []


def test_retries_end_after_the_given_time(clock: Clock, retry: Callable[..., str]) -> None:
    with pytest.raises(errors.UnavailableError):
        retry(30, *[errors.UnavailableError("away")] * 1000)
    assert 30 <= clock.now <= 31


def test_the_pause_is_at_least_the_one_that_the_server_requests(clock: Clock, retry: Callable[..., str]) -> None:
    assert retry(30, errors.UnavailableError("busy", retry_after=2.0)) == "done"
    assert 2 < clock.now < 2.1


def test_a_service_that_was_never_reached_is_reported_soon(clock: Clock, retry: Callable[..., str]) -> None:
    with pytest.raises(errors.UnavailableError, match="no service at far:1: start it with safe-psrl serve") as caught:
        retry(30, *[errors.UnavailableError("connect: Connection refused")] * 1000, reached=False)
    assert caught.value.reason == "NO_SERVICE"
    assert 1.4 <= clock.now <= 1.6


def test_a_service_that_is_starting_is_retried_as_one_that_was_reached(clock: Clock, retry: Callable[..., str]) -> None:
    with pytest.raises(errors.UnavailableError, match="starting"):
        retry(30, *[errors.UnavailableError("starting", "NOT_READY")] * 1000, reached=False)
    assert 30 <= clock.now <= 31


def test_a_failure_to_connect_that_is_no_absence_keeps_its_cause(retry: Callable[..., str]) -> None:
    with pytest.raises(errors.UnavailableError, match=r"no service at far:1: .* \(Ssl handshake failed\)"):
        retry(30, *[errors.UnavailableError("Ssl handshake failed")] * 1000, reached=False)
