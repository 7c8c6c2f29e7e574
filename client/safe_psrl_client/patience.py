"""Repeating a call until the service is back. Only for calls that can be repeated without harm, which ours are."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from safe_psrl_client.errors import (
    AbortedError,
    DeadlineExceededError,
    ResourceExhaustedError,
    SafePsrlClientError,
    UnavailableError,
)

DEFAULT_PATIENCE: Final = 30.0  # seconds
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

T = TypeVar("T")


class Pauses:
    """How long to wait after each failure of one call."""

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._longest = FIRST_PAUSE

    def after(self, error: SafePsrlClientError) -> float:
        """Seconds until the next attempt. Raises `error` if there should be none."""
        if not passes(error) or time.monotonic() >= self._until:
            raise error
        pause = random.uniform(self._longest / 2, self._longest) + (error.retry_after or 0.0)
        self._longest = min(2 * self._longest, LONGEST_PAUSE)
        return pause


def passes(error: SafePsrlClientError) -> bool:
    """Whether the same call may succeed later without anybody doing anything."""
    if isinstance(error, ResourceExhaustedError):
        return error.retry_after is not None
    return isinstance(error, UnavailableError | DeadlineExceededError | AbortedError)


def patiently(call: Callable[[], T], patience: float) -> T:
    """What `call` returns, repeated for up to `patience` seconds while its failures pass."""
    pauses = Pauses(patience)
    while True:
        try:
            return call()
        except SafePsrlClientError as error:
            time.sleep(pauses.after(error))


async def patiently_async(call: Callable[[], Awaitable[T]], patience: float) -> T:
    """The same for asyncio."""
    pauses = Pauses(patience)
    while True:
        try:
            return await call()
        except SafePsrlClientError as error:
            await asyncio.sleep(pauses.after(error))
