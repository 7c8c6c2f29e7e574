"""Limits of one identity: calls per second and concurrent calls."""

import time
from collections.abc import Callable
from typing import Final

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition import table_entries
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.config import Quotas
from safe_psrl_server.errors import LimitExceededError
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.identities import Identity
from safe_psrl_server.security.roles import Role

BUSY_RETRY_SECONDS: Final = 0.1
MAX_IDENTITIES: Final = 10_000


class TokenBucket:
    """Fills with `rate` tokens a second up to `burst`; a call takes one."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled = clock()

    def take(self) -> float:
        """Take a token and return 0, or take none and return the seconds until there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate


class _Usage:
    def __init__(self) -> None:
        self.bucket: TokenBucket | None = None
        self.calls = 0


class RateLimiter:
    """Usage of all identities, by name: several tokens of one name share it."""

    def __init__(self, quotas: Quotas, clock: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._clock = clock
        self._usage: dict[str, _Usage] = {}

    def wait_seconds(self, identity: Identity) -> float:
        """0 if the identity may call now, which counts as a call; else the seconds until it may."""
        rate = identity.calls_per_second or self._quotas.calls_per_second
        if not rate:
            return 0.0
        usage = self._of(identity.name)
        if usage.bucket is None or usage.bucket.rate != rate:
            usage.bucket = TokenBucket(rate, max(1.0, rate * self._quotas.burst_seconds), self._clock)
        return usage.bucket.take()

    def check_rate(self, identity: Identity) -> None:
        """Raises `LimitExceededError`."""
        seconds = self.wait_seconds(identity)
        if seconds > 0:
            raise _exceeded(f"{identity.name!r} exceeds its rate of calls", "RATE_LIMITED", seconds)

    def begin_call(self, identity: Identity) -> None:
        """Count a call until `end_call`. Raises `LimitExceededError` if the identity has too many."""
        usage = self._of(identity.name)
        most = identity.concurrent_calls or self._quotas.concurrent_calls
        if most and usage.calls >= most:
            raise _exceeded(f"{identity.name!r} has {most} concurrent calls, its limit", "TOO_MANY_CALLS", BUSY_RETRY_SECONDS)
        usage.calls += 1

    def end_call(self, name: str) -> None:
        self._of(name).calls -= 1

    def _of(self, name: str) -> _Usage:
        if name not in self._usage:
            if len(self._usage) >= MAX_IDENTITIES:  # drop names that are no longer in the file
                self._usage = {known: usage for known, usage in self._usage.items() if usage.calls}
            self._usage[name] = _Usage()
        return self._usage[name]


def _exceeded(message: str, reason: str, retry_seconds: float) -> LimitExceededError:
    error = LimitExceededError(message, reason)
    error.retry_seconds = retry_seconds
    return error


async def check_room(agents: AgentService, quotas: Quotas, name: str, spec: model_pb2.AgentSpec) -> None:
    """Raise `LimitExceededError` if there is none. An agent that exists needs none: creating it again changes nothing."""
    if name in agents.registry:
        return
    if not agents.registry.complete.is_set():  # after a start: the size of every agent must be known
        await agents.refresh()
    _check_quota(agents, quotas, caller().identity)
    used = agents.registry.size.table_entries
    needed, most = table_entries(spec.cmdp), agents.limits.max_total_table_entries
    if used + needed > most and needed <= agents.limits.max_table_entries:  # a larger one is malformed, whatever there is
        raise LimitExceededError(f"the agents' tables have {used} entries, and may have {most}", "MEMORY_QUOTA")


def _check_quota(agents: AgentService, quotas: Quotas, identity: Identity) -> None:
    """The agents of an identity are those that it may administer, regardless of who created them."""
    most = identity.max_agents if identity.max_agents is not None else quotas.max_agents or None
    if most is None:
        return
    count = sum(identity.may(Role.ADMIN, agent.name) for agent in agents.agents())
    if count >= most:
        raise LimitExceededError(f"{identity.name!r} has {count} agents, and may have {most}", "AGENT_QUOTA")
