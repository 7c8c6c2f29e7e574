# Generated from safe_psrl_client/aio by `make sync-client`: do not edit.
"""One episode as a context manager: the natural loop of an environment.

    with client.episode("buffer", state=environment.reset()) as episode:
        while not episode.done:
            next_state, reward, costs, _ = environment.step(episode.action)
            episode.report(next_state, reward, costs)

Leaving before the end truncates the episode; leaving by an exception abandons it. What was reported stays learned.

A continuing task is never done, unless the agent is paused: break the loop. Leaving does not end it; enter again to continue.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from safe_psrl_client.errors import EpisodeClosedError, SafePsrlClientError
from safe_psrl_client.requests import ABANDONED, EpisodeCursor, Transition

if TYPE_CHECKING:
    from safe_psrl_client.sync.client import Client

ABANDON_TIMEOUT: Final = 2.0  # seconds; an episode whose end is not reported times out on the server


class Episode(EpisodeCursor):
    """An episode of `Client.episode`: its `number`, `horizon`, current `state` and `step`."""

    def __init__(self, client: "Client", agent: str, state: int, *, abandon_open: bool = False) -> None:
        super().__init__(agent, state, abandon_open=abandon_open)
        self._client = client

    @property
    def done(self) -> bool:
        """Whether it has ended, or was not begun."""
        return not self.is_open

    @property
    def action(self) -> int:
        """The action to play in `state`. Raises `EpisodeClosedError` once the episode is done."""
        if self.next_action is None:
            raise EpisodeClosedError(f"agent {self.agent}: the episode is done", "NO_EPISODE")
        return self.next_action

    def begin(self) -> None:
        """Begin it; entering the context does so."""
        self.started(self._client.send_start(self.start))

    def report(
        self,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        *,
        action: int | None = None,
        terminal: bool = False,
    ) -> int | None:
        """Report a step; returns the next action, None at the end.

        `action`: if another than the proposed was executed; required while the agent is in shadow (`advisory`).
        """
        if action is None and self.advisory:
            raise ValueError(f"agent {self.agent} is in shadow: name the action that was executed")
        executed = self.action if action is None else action
        seen = Transition(self.state, executed, next_state, reward, costs, terminal)
        return self.advance(seen, self._client.send_step(self.step_request(seen)))

    def truncate(self) -> None:
        """End the episode here. Does nothing if it is done."""
        if self.is_open:
            self.accept_no_more()
            if not self.is_continuing:
                self._client.end_episode(self.agent, self.number, incarnation=self.incarnation)

    def abandon(self) -> None:
        """Give the episode up with one short attempt. Raises none of this package's errors."""
        if self.is_open:
            self.accept_no_more()
            if self.is_continuing:
                return
            with suppress(SafePsrlClientError):
                self._client.end_episode(
                    self.agent, self.number, ABANDONED, incarnation=self.incarnation, timeout=ABANDON_TIMEOUT
                )

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.truncate()
        else:
            self.abandon()
