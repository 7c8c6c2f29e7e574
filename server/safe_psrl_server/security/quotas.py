"""Limits of callers: calls per second, concurrent calls, agents."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition_checks import check_size, table_entries
from safe_psrl_server.agents.registry import unavailable
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.config import Quotas
from safe_psrl_server.errors import LimitExceededError
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.identities import Identity
from safe_psrl_server.security.roles import Role
from safe_psrl_server.store import StoreUnavailableError

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


class RateLimiter:
    """Calls per second of each identity, by name: several tokens of one name share it."""

    def __init__(self, quotas: Quotas, clock: Callable[[], float] = time.monotonic) -> None:
        self._quotas = quotas
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def wait_seconds(self, identity: Identity) -> float:
        """0 if the identity may call now, which counts as a call; else the seconds until it may."""
        rate = identity.calls_per_second or self._quotas.calls_per_second
        if not rate:
            return 0.0
        bucket = self._buckets.get(identity.name)
        if bucket is None or bucket.rate != rate:
            if len(self._buckets) >= MAX_IDENTITIES:  # names that are no longer in the file
                self._buckets.clear()
            bucket = TokenBucket(rate, max(1.0, rate * self._quotas.burst_seconds), self._clock)
            self._buckets[identity.name] = bucket
        return bucket.take()

    def check_rate(self, identity: Identity) -> None:
        """Raises `LimitExceededError`."""
        seconds = self.wait_seconds(identity)
        if seconds > 0:
            raise LimitExceededError(f"{identity.name!r} exceeds its rate of calls", "RATE_LIMITED", retry_seconds=seconds)


class CallSlots:
    """Concurrent calls: at most `most` in all, and a number for each holder."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._held: dict[str, int] = {}  # by holder, above 0

    def take(self, holder: str, most: int) -> None:
        """Raises `LimitExceededError` if the holder has `most`, or if all are taken."""
        held = self._held.get(holder, 0)
        if held >= most:
            raise LimitExceededError(f"{holder!r} has {most} concurrent calls, its limit", "TOO_MANY_CALLS")
        if self._total >= self._most:
            raise LimitExceededError(f"the server has {self._most} concurrent calls, its limit", "SERVER_BUSY")
        self._total += 1
        self._held[holder] = held + 1

    def give_back(self, holder: str) -> None:
        self._total -= 1
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]


class Turns:
    """Work that is under way at once: `most` for each holder; more waits, in order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # those in use

    def of(self, holder: str) -> asyncio.Semaphore:
        turns = self._holders.get(holder)
        if turns is None:
            turns = self._holders[holder] = asyncio.Semaphore(self._most)
        return turns


@asynccontextmanager
async def reserved_room(agents: AgentService, quotas: Quotas, name: str, cmdp: model_pb2.CmdpSpec) -> AsyncIterator[None]:
    """Room for one more agent, kept until its creation has ended. Raises `LimitExceededError` if there is none.

    An agent that exists needs none: creating it again changes nothing. Other replicas' creations are not seen before they
    are stored.
    """
    check_size(cmdp, agents.limits)
    with ExitStack() as reservation:
        try:
            await agents.settle()  # after a start: the size of every agent must be known
            if not await agents.registry.exists(name):
                async with agents.reserving:  # or creations at once would all find the same room
                    await _check_quota(agents, quotas, caller().identity)
                    reservation.enter_context(agents.registry.reserve(name, table_entries(cmdp)))
        except StoreUnavailableError as error:
            raise unavailable(error) from error
        yield


async def _check_quota(agents: AgentService, quotas: Quotas, identity: Identity) -> None:
    """The agents of an identity are those that it may administer, regardless of who created them."""
    most = identity.max_agents if identity.max_agents is not None else quotas.max_agents or None
    if most is None:
        return
    names = await agents.names()
    count = await agents.threads.run(lambda: sum(identity.may(Role.ADMIN, name) for name in names))
    if count >= most:
        raise LimitExceededError(f"{identity.name!r} has {count} agents; its limit is {most}", "AGENT_QUOTA")
