"""The agent that plays an environment: one small interface in process and over the network, and its remote implementation.

agent = RemoteAgent(client, "buffer")          # or LocalAgent(spec) of safe_psrl_testbed.local_agent
action = agent.begin(state)
while action is not None:
    ...
    action = agent.step(state, action, next_state, reward, costs)
agent.finish()
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, Protocol, Self, get_args

from safe_psrl_client.errors import EpisodeClosedError, SafePsrlClientError
from safe_psrl_client.requests import ABANDONED, EpisodeCursor, Transition, report_episode
from safe_psrl_client.sync.client import Client
from safe_psrl_client.sync.episode import ABANDON_TIMEOUT
from safe_psrl_client.sync.stream import RetryingStream
from safe_psrl_proto.v1 import control_pb2, model_pb2

Mode = Literal["step", "stream", "local"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


class Agent(Protocol):
    """Plays one episode at a time.

    A transition that the specification excludes raises a ValueError in `step`, or at the latest in `finish`.
    """

    @property
    def advisory(self) -> bool:
        """Whether the agent is in shadow: its actions are proposals, and another controller acts."""
        ...

    def begin(self, state: int) -> int:
        """Begin an episode in `state`; the first action."""
        ...

    def step(
        self,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        terminal: bool = False,
    ) -> int | None:
        """Learn a transition; returns the next action, or None when the episode is done.

        `action` is the executed one, proposed or not. Reward and costs, from 0 to 1, may be omitted where the
        specification knows them. `terminal`: the environment ended the episode with this step.
        """
        ...

    def finish(self) -> None:
        """End the episode: all its steps are learned when this returns. Truncates an episode that is not done."""
        ...

    def abandon(self) -> None:
        """Give the episode up. Its reported steps stay learned. Never fails."""
        ...


class RemoteAgent:
    """The agent called `name` behind `client`, which the caller keeps and closes. For one thread.

    Modes: `step`, one call per step; `stream`, the same over one stream; `local`, the policy is fetched and played here and
    `finish` reports the whole episode: two calls per episode, whatever its length.

    In every mode a call is retried while the service is unavailable, for up to `client.patience` seconds; the server recognises
    repetitions. So a restart of the server is a pause, and no step is lost or learned twice.

    A continuing task has no last step: `finish`, `abandon` and `close` leave it where it is, and `begin` resumes it. In the
    mode `local` a policy comes with the number of steps for which it is valid; they are reported at once, by `finish` or by
    the last of them.
    """

    def __init__(self, client: Client, name: str, mode: Mode = "step", *, abandon_open: bool = False) -> None:
        """abandon_open: `begin` abandons an episode that is still open, instead of raising `EpisodeOpenError`."""
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self.name = name
        self.mode = mode
        self.policy: model_pb2.Policy | None = None  # of the latest episode; known here in mode `local` only
        self._client = client
        self._stream = RetryingStream(client, name) if mode == "stream" else None
        self._abandon_open = abandon_open
        self._cursor: EpisodeCursor | None = None
        self._unreported: list[Transition] = []  # in mode `local`
        self._draws: Sequence[float] = ()  # in mode `local` of a continuing task: one for each step for which it is valid

    @property
    def episode(self) -> int:
        """Number of the latest episode; 0 before the first."""
        return self._cursor.number if self._cursor else 0

    @property
    def advisory(self) -> bool:
        """Whether the agent is in shadow: its actions are proposals, and another controller acts."""
        return self._cursor is not None and self._cursor.advisory

    def begin(self, state: int) -> int:
        """Begin an episode in `state`; the first action. Raises `EpisodeOpenError` if one is open, unless `abandon_open`."""
        local = self.mode == "local"
        cursor = EpisodeCursor(self.name, state, with_policy=local, abandon_open=self._abandon_open)
        reply = self._send_start(cursor.start)
        cursor.started(reply)
        self._cursor, self._unreported = cursor, []
        self.policy, self._draws = (reply.policy, reply.draws) if local else (None, ())
        return reply.action

    def step(
        self,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        terminal: bool = False,
    ) -> int | None:
        """Report a transition; returns the next action, or None when the episode is done. As in `Agent.step`."""
        seen = Transition(state, action, next_state, reward, costs, terminal)
        if self._cursor is None or not self._cursor.is_open:
            raise EpisodeClosedError(f"agent {self.name}: no episode is open; begin one first", "NO_EPISODE")
        if self.policy is not None and self._cursor.is_continuing:
            return self._step_on(self._cursor, self.policy, seen)
        if self.policy is not None:
            return self._step_locally(self.policy, seen)
        return self._cursor.advance(seen, self._send_step(self._cursor.step_request(seen)))

    def finish(self) -> None:
        """End the episode: all its steps are learned when this returns. Truncates an episode that is not done."""
        cursor = self._cursor
        if cursor is None or not cursor.is_open:
            return
        if self._unreported:
            reply = self._report(cursor)
            cursor.is_open = not reply.episode_done
        if cursor.is_open:
            cursor.accept_no_more()
            if not cursor.is_continuing:
                self._client.end_episode(self.name, cursor.number, incarnation=cursor.incarnation)

    def abandon(self) -> None:
        """Give the episode up. Its reported steps stay learned. Raises none of this package's errors."""
        cursor = self._cursor
        if cursor is None or not cursor.is_open:
            return
        cursor.accept_no_more()
        if self._unreported:
            with suppress(SafePsrlClientError):
                self._report(cursor, timeout=ABANDON_TIMEOUT)
        if cursor.is_continuing:
            return
        with suppress(SafePsrlClientError):
            self._client.end_episode(
                self.name, cursor.number, ABANDONED, incarnation=cursor.incarnation, timeout=ABANDON_TIMEOUT
            )

    def close(self) -> None:
        """Abandon an open episode and close the stream, if there is one."""
        self.abandon()
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report(
        self, cursor: EpisodeCursor, following: control_pb2.StartEpisodeRequest | None = None, timeout: float | None = None
    ) -> control_pb2.ReportEpisodeResponse:
        """Report what was played locally; once it has succeeded, it is forgotten here."""
        first, seen = cursor.step if cursor.is_continuing else 0, self._unreported
        request = report_episode(self.name, cursor.number, seen, cursor.incarnation, first, following)
        reply = self._client.send_report(request, timeout)
        self._unreported = []
        return reply

    def _step_on(self, cursor: EpisodeCursor, policy: model_pb2.Policy, seen: Transition) -> int | None:
        """A step of a continuing task, by the policy of its epoch; the last for which it is valid brings the next policy."""
        played = self._unreported
        played.append(seen)
        if len(played) < len(self._draws):
            return drawn_action(policy, seen.next_state, self._draws[len(played)])
        steps, following = len(played), control_pb2.StartEpisodeRequest(with_policy=True)
        reply = self._report(cursor, following)
        if reply.HasField("next"):
            self.policy, self._draws = reply.next.policy, reply.next.draws
        return cursor.reported(steps, reply)

    def _step_locally(self, policy: model_pb2.Policy, seen: Transition) -> int | None:
        played = self._unreported
        if played and (played[-1].terminal or len(played) == policy.horizon):
            raise EpisodeClosedError(f"agent {self.name}: the episode is done; begin another one", "NO_EPISODE")
        played.append(seen)
        if seen.terminal or len(played) == policy.horizon:
            return None
        if not 0 <= seen.next_state < policy.num_states:  # the server checks it in `finish`, but an action is needed now
            raise ValueError(f"next_state must be from 0 to {policy.num_states - 1}, got {seen.next_state}")
        return policy.actions[len(played) * policy.num_states + seen.next_state]

    def _send_start(self, request: control_pb2.StartEpisodeRequest) -> control_pb2.StartEpisodeResponse:
        return self._stream.exchange(request).start_episode if self._stream else self._client.send_start(request)

    def _send_step(self, request: control_pb2.StepRequest) -> control_pb2.StepResponse:
        return self._stream.exchange(request).step if self._stream else self._client.send_step(request)


def drawn_action(policy: model_pb2.Policy, state: int, draw: float) -> int:
    """The action of a policy of probabilities in `state`: the first of positive probability on which `draw` falls.

    Equal numbers give the server's action to the bit.
    """
    num_actions = len(policy.probabilities) // policy.num_states
    if not 0 <= state < policy.num_states:  # the server checks it when it is reported, but an action is needed now
        raise ValueError(f"next_state must be from 0 to {policy.num_states - 1}, got {state}")
    chosen = -1
    for action, probability in enumerate(policy.probabilities[state * num_actions : (state + 1) * num_actions]):
        if probability > 0.0:
            chosen, draw = action, draw - probability
            if draw < 0.0:
                break
    return chosen
