"""One episode as a context manager: the natural loop of an environment.

    with client.episode("buffer", state=environment.reset()) as episode:
        while not episode.done:
            next_state, reward, costs, _ = environment.step(episode.action)
            episode.report(next_state, reward, costs)

Leaving before the end truncates the episode; leaving by an exception abandons it. What was reported stays learned.
"""

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from safe_psrl_client.cursor import EpisodeCursor
from safe_psrl_client.errors import EpisodeClosedError, SafePsrlClientError
from safe_psrl_client.patience import patiently, patiently_async
from safe_psrl_client.requests import Transition
from safe_psrl_proto.v1 import events_pb2

if TYPE_CHECKING:
    from safe_psrl_client.aio_client import AsyncClient
    from safe_psrl_client.client import Client

TRUNCATED: Final = events_pb2.EPISODE_END_TRUNCATED
ABANDONED: Final = events_pb2.EPISODE_END_ABANDONED
FAREWELL_TIMEOUT: Final = 2.0  # seconds for abandoning, which nothing waits for: the server would find out by itself


class EpisodeView:
    """What can be read of an episode."""

    def __init__(self, cursor: EpisodeCursor) -> None:
        self._cursor = cursor

    @property
    def number(self) -> int:
        """From 1; 0 before the episode is entered."""
        return self._cursor.number

    @property
    def horizon(self) -> int:
        return self._cursor.horizon

    @property
    def step(self) -> int:
        """The step to be played next, from 0."""
        return self._cursor.step

    @property
    def state(self) -> int:
        """Where the episode is."""
        return self._cursor.state

    @property
    def done(self) -> bool:
        return not self._cursor.is_open

    @property
    def action(self) -> int:
        """What to play in `state`. Raises `EpisodeClosedError` once the episode is done."""
        if self._cursor.action is None:
            raise EpisodeClosedError(f"agent {self._cursor.agent}: the episode is done", "NO_EPISODE")
        return self._cursor.action

    def _seen(
        self, next_state: int, reward: float | None, costs: Sequence[float], action: int | None, terminal: bool
    ) -> Transition:
        executed = self.action if action is None else action
        return Transition(self._cursor.state, executed, next_state, reward, costs, terminal)


class Episode(EpisodeView):
    """An episode of `Client`."""

    def __init__(self, client: "Client", cursor: EpisodeCursor) -> None:
        super().__init__(cursor)
        self._client = client

    def begin(self) -> None:
        start = self._cursor.start
        self._cursor.started(patiently(lambda: self._client.send_start(start), self._client.patience))

    def report(
        self,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        *,
        action: int | None = None,
        terminal: bool = False,
    ) -> int | None:
        """Enter a step and go on; returns the next action, None at the end. `action`: if another one was executed."""
        return self.enter(self._seen(next_state, reward, costs, action, terminal))

    def enter(self, seen: Transition) -> int | None:
        """`report`, with every field given."""
        request = self._cursor.report(seen)
        return self._cursor.reported(seen, patiently(lambda: self._client.send_step(request), self._client.patience))

    def truncate(self) -> None:
        """End the episode here. Does nothing if it is done."""
        if self._cursor.is_open:
            request = self._cursor.close(TRUNCATED)
            patiently(lambda: self._client.send_end(request), self._client.patience)

    def abandon(self) -> None:
        """Give the episode up, and do not insist: a server that cannot be reached will find out. Raises nothing of ours."""
        if self._cursor.is_open:
            with suppress(SafePsrlClientError):
                self._client.send_end(self._cursor.close(ABANDONED), FAREWELL_TIMEOUT)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.truncate()
        else:
            self.abandon()


class AsyncEpisode(EpisodeView):
    """An episode of `AsyncClient`; see `Episode`."""

    def __init__(self, client: "AsyncClient", cursor: EpisodeCursor) -> None:
        super().__init__(cursor)
        self._client = client

    async def begin(self) -> None:
        start = self._cursor.start
        self._cursor.started(await patiently_async(lambda: self._client.send_start(start), self._client.patience))

    async def report(
        self,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        *,
        action: int | None = None,
        terminal: bool = False,
    ) -> int | None:
        seen = self._seen(next_state, reward, costs, action, terminal)
        request = self._cursor.report(seen)
        reply = await patiently_async(lambda: self._client.send_step(request), self._client.patience)
        return self._cursor.reported(seen, reply)

    async def truncate(self) -> None:
        if self._cursor.is_open:
            request = self._cursor.close(TRUNCATED)
            await patiently_async(lambda: self._client.send_end(request), self._client.patience)

    async def abandon(self) -> None:
        if self._cursor.is_open:
            with suppress(SafePsrlClientError):
                await self._client.send_end(self._cursor.close(ABANDONED), FAREWELL_TIMEOUT)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.truncate()
        else:
            await self.abandon()
