# Generated from safe_psrl_client/aio by `make sync-client`: do not edit.
"""One episode as a context manager: the natural loop of an environment.

    with client.episode("buffer", state=environment.reset()) as episode:
        while not episode.done:
            next_state, reward, costs, _ = environment.step(episode.action)
            episode.report(next_state, reward, costs)

Leaving before the end truncates the episode; leaving by an exception abandons it. What was reported stays learned.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from safe_psrl_client.cursor import EpisodeCursor
from safe_psrl_client.errors import EpisodeClosedError, SafePsrlClientError
from safe_psrl_client.requests import ABANDONED, Transition

if TYPE_CHECKING:
    from safe_psrl_client.sync.client import Client

ABANDON_TIMEOUT: Final = 2.0  # seconds; the server times an episode out that it is not told about


class Episode:
    """An episode of `Client.episode`."""

    def __init__(self, client: "Client", cursor: EpisodeCursor) -> None:
        self._client = client
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
        """The current state."""
        return self._cursor.state

    @property
    def done(self) -> bool:
        return not self._cursor.is_open

    @property
    def action(self) -> int:
        """The action to play in `state`. Raises `EpisodeClosedError` once the episode is done."""
        if self._cursor.action is None:
            raise EpisodeClosedError(f"agent {self._cursor.agent}: the episode is done", "NO_EPISODE")
        return self._cursor.action

    def begin(self) -> None:
        self._cursor.started(self._client.send_start(self._cursor.start))

    def report(
        self,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        *,
        action: int | None = None,
        terminal: bool = False,
    ) -> int | None:
        """Report a step; returns the next action, None at the end. `action`: if another than the proposed was executed."""
        executed = self.action if action is None else action
        seen = Transition(self.state, executed, next_state, reward, costs, terminal)
        return self._cursor.reported(seen, self._client.send_step(self._cursor.report(seen)))

    def truncate(self) -> None:
        """End the episode here. Does nothing if it is done."""
        if self._cursor.is_open:
            self._cursor.close()
            self._client.end_episode(self._cursor.agent, self.number)

    def abandon(self) -> None:
        """Give the episode up with one short attempt. Raises none of this package's errors."""
        if self._cursor.is_open:
            self._cursor.close()
            with suppress(SafePsrlClientError):
                self._client.end_episode(self._cursor.agent, self.number, ABANDONED, timeout=ABANDON_TIMEOUT)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.truncate()
        else:
            self.abandon()
