"""The client's one retry policy: UNAVAILABLE is retried with growing pauses, every other status is raised.

Every call that this package retries is idempotent: it carries the key by which the server recognises a repetition.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc

from safe_psrl_client.errors import SafePsrlClientError, UnavailableError, error_of_call

DEFAULT_PATIENCE: Final = 30.0  # seconds
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0

T = TypeVar("T")


async def retry(call: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The result of `call`, repeated while the service is unavailable and fewer than `seconds` have passed.

    Errors of gRPC are raised as errors of this package.
    """
    end = time.monotonic() + seconds
    longest = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except grpc.RpcError as error:
            failure: SafePsrlClientError = error_of_call(error)
            failure.__cause__ = error
        except UnavailableError as error:  # of a stream
            failure = error
        if not isinstance(failure, UnavailableError) or time.monotonic() >= end:
            raise failure
        await asyncio.sleep(random.uniform(longest / 2, longest) + (failure.retry_after or 0.0))
        longest = min(2 * longest, LONGEST_PAUSE_SECONDS)
