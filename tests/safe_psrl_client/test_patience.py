"""What is repeated, for how long, and what is not."""

import asyncio

import pytest

from safe_psrl_client import errors, patience


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
    monkeypatch.setattr(patience, "time", clock)
    return clock


def failing(*failures: errors.SafePsrlClientError) -> patience.Callable[[], str]:
    left = list(failures)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


def test_what_passes_is_repeated_with_growing_pauses(clock: Clock) -> None:
    passing = [errors.UnavailableError("1"), errors.DeadlineExceededError("2"), errors.AbortedError("3")]
    assert patience.patiently(failing(*passing), 30) == "done"
    assert len(clock.pauses) == 3
    for pause, longest in zip(clock.pauses, (0.05, 0.1, 0.2), strict=True):
        assert longest / 2 <= pause <= longest


@pytest.mark.parametrize("kind", [errors.InvalidArgumentError, errors.EpisodeClosedError, errors.DataLossError])
def test_an_answer_is_not_repeated(clock: Clock, kind: type[errors.SafePsrlClientError]) -> None:
    with pytest.raises(kind):
        patience.patiently(failing(kind("no")), 30)
    assert clock.pauses == []


def test_patience_ends(clock: Clock) -> None:
    with pytest.raises(errors.UnavailableError):
        patience.patiently(failing(*[errors.UnavailableError("away")] * 1000), 30)
    assert 30 <= clock.now <= 31


def test_a_limit_is_waited_for_only_if_the_server_says_how_long(clock: Clock) -> None:
    assert patience.patiently(failing(errors.ResourceExhaustedError("busy", retry_after=2.0)), 30) == "done"
    assert 2 < clock.now < 2.1
    with pytest.raises(errors.ResourceExhaustedError):
        patience.patiently(failing(errors.ResourceExhaustedError("too large")), 30)


async def test_asyncio_waits_likewise(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(seconds: float) -> None:
        clock.sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    call = failing(errors.UnavailableError("1"))

    async def attempt() -> str:
        return call()

    assert await patience.patiently_async(attempt, 30) == "done"
    assert len(clock.pauses) == 1
