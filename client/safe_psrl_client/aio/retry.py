"""The client's one retry policy: UNAVAILABLE is retried with growing pauses, every other status is raised.

Every call that this package retries is idempotent: it carries the key by which the server recognises a repetition.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from safe_psrl_client.errors import UnavailableError

DEFAULT_PATIENCE: Final = 30.0  # seconds
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0

T = TypeVar("T")


async def retry(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The result of `call`, repeated while it raises `UnavailableError` and fewer than `seconds` have passed."""
    end = time.monotonic() + seconds
    longest = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if time.monotonic() >= end:
                raise
            pause = random.uniform(longest / 2, longest) + (error.retry_after or 0.0)
        await asyncio.sleep(pause)
        longest = min(2 * longest, LONGEST_PAUSE_SECONDS)
