"""The three ways in which a remote agent plays: one call per step, a stream, or the policy locally and a report at the end."""

from contextlib import suppress

from safe_psrl_client.cursor import EpisodeCursor
from safe_psrl_client.errors import EpisodeClosedError, SafePsrlClientError
from safe_psrl_client.requests import ABANDONED, Transition
from safe_psrl_client.sync.client import Client
from safe_psrl_client.sync.episode import ABANDON_TIMEOUT
from safe_psrl_client.sync.stream import RetryingStream
from safe_psrl_proto.v1 import control_pb2, model_pb2


class StepMode:
    """One call per step; the base of the other modes."""

    with_policy = False

    def __init__(self, client: Client, name: str, abandon_open: bool) -> None:
        self.client = client
        self.name = name
        self.cursor: EpisodeCursor | None = None
        self.policy: model_pb2.Policy | None = None
        self._abandon_open = abandon_open

    def begin(self, state: int) -> int:
        cursor = EpisodeCursor(self.name, state, with_policy=self.with_policy, abandon_open=self._abandon_open)
        reply = self._send_start(cursor.start)
        cursor.started(reply)
        self.cursor = cursor
        self.policy = reply.policy if self.with_policy else None
        return reply.action

    def step(self, seen: Transition) -> int | None:
        cursor = self._open_cursor()
        return cursor.reported(seen, self._send_step(cursor.report(seen)))

    def finish(self) -> None:
        if self.cursor is not None and self.cursor.is_open:
            self.cursor.close()
            self.client.end_episode(self.name, self.cursor.number)

    def abandon(self) -> None:
        if self.cursor is not None and self.cursor.is_open:
            self.cursor.close()
            with suppress(SafePsrlClientError):
                self.client.end_episode(self.name, self.cursor.number, ABANDONED, timeout=ABANDON_TIMEOUT)

    def close(self) -> None:
        self.abandon()

    def _send_start(self, request: control_pb2.StartEpisodeRequest) -> control_pb2.StartEpisodeResponse:
        return self.client.send_start(request)

    def _send_step(self, request: control_pb2.StepRequest) -> control_pb2.StepResponse:
        return self.client.send_step(request)

    def _open_cursor(self) -> EpisodeCursor:
        if self.cursor is None or not self.cursor.is_open:
            raise EpisodeClosedError(f"agent {self.name}: no episode is open; begin one first", "NO_EPISODE")
        return self.cursor


class StreamMode(StepMode):
    """Steps and starts over one stream."""

    def __init__(self, client: Client, name: str, abandon_open: bool) -> None:
        super().__init__(client, name, abandon_open)
        self._stream = RetryingStream(client, name)

    def close(self) -> None:
        super().close()
        self._stream.close()

    def _send_start(self, request: control_pb2.StartEpisodeRequest) -> control_pb2.StartEpisodeResponse:
        return self._stream.exchange(request).start_episode

    def _send_step(self, request: control_pb2.StepRequest) -> control_pb2.StepResponse:
        return self._stream.exchange(request).step


class LocalMode(StepMode):
    """The policy is played here; `finish` reports the whole episode."""

    with_policy = True

    def begin(self, state: int) -> int:
        action = super().begin(state)
        self._seen: list[Transition] = []
        self._done = False
        return action

    def step(self, seen: Transition) -> int | None:
        self._open_cursor()
        if self.policy is None or self._done:
            raise EpisodeClosedError(f"agent {self.name}: the episode is done; begin another one", "NO_EPISODE")
        self._seen.append(seen)
        self._done = seen.terminal or len(self._seen) == self.policy.horizon
        if self._done:
            return None
        num_states = self.policy.num_states
        if not 0 <= seen.next_state < num_states:  # the server checks it in `finish`, but an action is needed now
            raise ValueError(f"next_state must be from 0 to {num_states - 1}, got {seen.next_state}")
        return self.policy.actions[len(self._seen) * num_states + seen.next_state]

    def finish(self) -> None:
        if self.cursor is not None and self.cursor.is_open and self._seen:
            reply = self.client.report_episode(self.name, self.cursor.number, self._seen)
            self.cursor.step, self.cursor.is_open = len(self._seen), not reply.episode_done
        super().finish()

    def abandon(self) -> None:
        if self.cursor is not None and self.cursor.is_open:
            with suppress(SafePsrlClientError):
                self.client.report_episode(self.name, self.cursor.number, self._seen, timeout=ABANDON_TIMEOUT)
        super().abandon()
