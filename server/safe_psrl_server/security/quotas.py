"""How much one identity may ask for: calls a second, calls at once, agents."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from safe_psrl_server.config import Quotas
from safe_psrl_server.errors import LimitExceededError
from safe_psrl_server.security.identities import Identity

BUSY_RETRY_SECONDS: Final = 0.1
MOST_ACCOUNTS: Final = 10_000


class Bucket:
    """Fills with `rate` tokens a second up to `burst`; a call takes one."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled = clock()

    def wait(self) -> float:
        """Take a token and return 0, or leave it and return the seconds until there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate


class Account:
    """One identity's use."""

    def __init__(self) -> None:
        self.bucket: Bucket | None = None
        self.calls = 0


class Accounts:
    """The use of all identities, by name: several tokens of one name share it."""

    def __init__(self, quotas: Quotas, clock: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    @property
    def are_unlimited(self) -> bool:
        """Whether nobody who is not named has a limit of calls."""
        return not self._quotas.calls_per_second and not self._quotas.concurrent_calls

    def wait(self, identity: Identity) -> float:
        """Seconds until the identity may call again; 0, and counted, if it may now."""
        rate = identity.calls_per_second or self._quotas.calls_per_second
        if not rate:
            return 0.0
        account = self._account(identity.name)
        if account.bucket is None or account.bucket.rate != rate:
            account.bucket = Bucket(rate, max(1.0, rate * self._quotas.burst_seconds), self._clock)
        return account.bucket.wait()

    def check_rate(self, identity: Identity) -> None:
        """Raises `LimitExceededError`."""
        seconds = self.wait(identity)
        if seconds > 0:
            raise _exceeded(f"{identity.name!r} calls too often", "RATE_LIMITED", seconds)

    @contextmanager
    def under_way(self, identity: Identity) -> Iterator[None]:
        """While a call is answered. Raises `LimitExceededError` if there are as many as there may be."""
        account = self._account(identity.name)
        most = identity.concurrent_calls or self._quotas.concurrent_calls
        if most and account.calls >= most:
            raise _exceeded(f"{identity.name!r} has {most} calls under way", "TOO_MANY_CALLS", BUSY_RETRY_SECONDS)
        account.calls += 1
        try:
            yield
        finally:
            account.calls -= 1

    def _account(self, name: str) -> Account:
        if name not in self._accounts:
            if len(self._accounts) >= MOST_ACCOUNTS:  # names that the file has no longer
                self._accounts = {known: account for known, account in self._accounts.items() if account.calls}
            self._accounts[name] = Account()
        return self._accounts[name]


def _exceeded(message: str, reason: str, retry_seconds: float) -> LimitExceededError:
    error = LimitExceededError(message, reason)
    error.retry_seconds = retry_seconds
    return error
