"""The three ways in which a remote agent plays: a call a step, a stream, or the policy here and a report at the end."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from safe_psrl_client.client import Client
from safe_psrl_client.cursor import EpisodeCursor
from safe_psrl_client.episode import ABANDONED, FAREWELL_TIMEOUT, TRUNCATED
from safe_psrl_client.errors import EpisodeClosedError, SafePsrlClientError
from safe_psrl_client.patience import patiently
from safe_psrl_client.requests import Transition
from safe_psrl_client.stream import StepStream
from safe_psrl_proto.v1 import control_pb2, model_pb2

T = TypeVar("T")


class Play:
    """What the ways have in common."""

    with_policy = False

    def __init__(self, client: Client, name: str, abandon_open: bool) -> None:
        self.client = client
        self.name = name
        self.cursor: EpisodeCursor | None = None
        self.policy: model_pb2.Policy | None = None
        self._abandon_open = abandon_open

    def begin(self, state: int) -> int:
        cursor = EpisodeCursor(self.name, state, with_policy=self.with_policy, abandon_open=self._abandon_open)
        reply = self.start(cursor.start)
        cursor.started(reply)
        self.cursor = cursor
        self.policy = reply.policy if self.with_policy else None
        return reply.action

    def start(self, request: control_pb2.StartEpisodeRequest) -> control_pb2.StartEpisodeResponse:
        return self.insist(lambda: self.client.send_start(request))

    def step(self, seen: Transition) -> int | None:
        raise NotImplementedError

    def finish(self) -> None:
        if self.cursor is not None and self.cursor.is_open:
            request = self.cursor.close(TRUNCATED)
            self.insist(lambda: self.client.send_end(request))

    def abandon(self) -> None:
        if self.cursor is not None and self.cursor.is_open:
            with suppress(SafePsrlClientError):
                self.client.send_end(self.cursor.close(ABANDONED), FAREWELL_TIMEOUT)

    def close(self) -> None:
        self.abandon()

    def insist(self, call: Callable[[], T]) -> T:
        return patiently(call, self.client.patience)

    def open_cursor(self) -> EpisodeCursor:
        if self.cursor is None:
            raise EpisodeClosedError(f"agent {self.name}: no episode is open here; begin one first", "NO_EPISODE")
        return self.cursor


class SteppedPlay(Play):
    def step(self, seen: Transition) -> int | None:
        cursor = self.open_cursor()
        request = cursor.report(seen)
        return cursor.reported(seen, self.insist(lambda: self.client.send_step(request)))


class StreamedPlay(Play):
    """A stream is renewed once it is `client.timeout` old, and ends when it is twice that: a reply has so long to come."""

    _stream: StepStream | None = None

    def start(self, request: control_pb2.StartEpisodeRequest) -> control_pb2.StartEpisodeResponse:
        return self.insist(lambda: self._fresh_stream().exchange(request)).start_episode

    def step(self, seen: Transition) -> int | None:
        cursor = self.open_cursor()
        request = cursor.report(seen)
        return cursor.reported(seen, self.insist(lambda: self._fresh_stream().exchange(request)).step)

    def close(self) -> None:
        super().close()
        if self._stream is not None:
            self._stream.close()

    def _fresh_stream(self) -> StepStream:
        stream = self._stream
        if stream is None or not stream.is_usable or stream.age > self.client.timeout:
            if stream is not None:
                stream.close()
            stream = self._stream = self.client.step_stream(self.name, timeout=2 * self.client.timeout)
        return stream


class LocalPlay(Play):
    with_policy = True

    def begin(self, state: int) -> int:
        action = super().begin(state)
        self._seen: list[Transition] = []
        self._done = False
        return action

    def step(self, seen: Transition) -> int | None:
        cursor, policy = self.open_cursor(), self.policy
        if policy is None or not cursor.is_open or self._done:
            raise EpisodeClosedError(f"agent {self.name}: the episode is done; begin another one", "NO_EPISODE")
        self._seen.append(seen)
        self._done = seen.terminal or len(self._seen) == policy.horizon
        if self._done:
            return None
        if not 0 <= seen.next_state < policy.num_states:  # the server would say so at the end; an action is needed now
            raise ValueError(f"next_state = {seen.next_state}: must be from 0 to {policy.num_states - 1}")
        return policy.actions[len(self._seen) * policy.num_states + seen.next_state]

    def finish(self) -> None:
        if self.cursor is not None and self.cursor.is_open:
            self._report(self.cursor)
            super().finish()

    def abandon(self) -> None:
        if self.cursor is not None and self.cursor.is_open:
            with suppress(SafePsrlClientError):
                self.client.send_report(self.cursor.report_all(self._seen), FAREWELL_TIMEOUT)
            super().abandon()

    def _report(self, cursor: EpisodeCursor) -> None:
        if not self._seen:
            return
        request = cursor.report_all(self._seen)
        reply = self.insist(lambda: self.client.send_report(request))
        cursor.step, cursor.is_open = len(self._seen), not reply.episode_done
