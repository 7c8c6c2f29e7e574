"""The client's one retry policy: UNAVAILABLE is retried with growing pauses, every other status is raised.

Every call that this package retries is idempotent: it carries the key by which the server recognises a repetition.
A restart of the service is waited for; a service that was never reached is reported soon (`FirstContact`).
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc

from safe_psrl_client.errors import SafePsrlClientError, UnavailableError, error_of_call

DEFAULT_PATIENCE: Final = 30.0  # seconds
FIRST_CONTACT_SECONDS: Final = 1.5
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
NO_SERVICE: Final = "NO_SERVICE"  # the reason of an `UnavailableError`

T = TypeVar("T")


class FirstContact:
    """Whether the service at `target` was ever reached. Until then, calls are retried for `seconds` at most."""

    def __init__(self, target: str, seconds: float) -> None:
        self.target = target
        self.seconds = seconds
        self.made = False

    def failure(self, error: UnavailableError) -> UnavailableError:
        """What the caller of a service that was never reached receives."""
        absent = any(cause in str(error) for cause in ("Connection refused", "No such file"))
        detail = "" if absent else f" ({error})"
        message = f"no service at {self.target}: start it with safe-psrl serve{detail}"
        return UnavailableError(message, NO_SERVICE)


async def retry(call: Callable[[], Awaitable[T]], seconds: float, contact: FirstContact) -> T:
    """The result of `call`, repeated while the service is unavailable and fewer than `seconds` have passed.

    Errors of gRPC are raised as errors of this package.
    """
    began = time.monotonic()
    longest = FIRST_PAUSE_SECONDS
    while True:
        try:
            result = await call()
        except grpc.RpcError as error:
            failure: SafePsrlClientError = error_of_call(error)
            failure.__cause__ = error
        except UnavailableError as error:  # of a stream
            failure = error
        else:
            contact.made = True
            return result
        contact.made |= failure.reason != ""  # failures of gRPC itself have none
        if not isinstance(failure, UnavailableError):
            raise failure
        left = began + (seconds if contact.made else min(seconds, contact.seconds)) - time.monotonic()
        if left <= 0:
            if contact.made:
                raise failure
            raise contact.failure(failure) from failure
        pause = random.uniform(longest / 2, longest) + (failure.retry_after or 0.0)
        await asyncio.sleep(pause if contact.made else min(pause, left))
        longest = min(2 * longest, LONGEST_PAUSE_SECONDS)
