# Generated from safe_psrl_client/aio by `make sync-client`: do not edit.
"""Calls around an agent's trust: compare it with the controller in charge, promote and demote it, correct late feedback."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from safe_psrl_client import requests
from safe_psrl_client.channel import Metadata
from safe_psrl_client.fields import message_of
from safe_psrl_client.sync.retry import FirstContact, retry
from safe_psrl_client.transition_export import TransitionLog, log_of
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc

COMPARISON_TIMEOUT: Final = 120.0  # seconds


class TrustCalls:
    """A part of `Client`."""

    if TYPE_CHECKING:
        _admin: admin_pb2_grpc.AdminServiceStub
        _control: control_pb2_grpc.ControlServiceStub

        patience: float
        contact: FirstContact

        def _metadata(self, agent: str) -> Metadata: ...
        def _call(self, method: Any, request: Any, timeout: float | None) -> Any: ...

    def compare_agent(
        self, agent: str, policy: Sequence[Sequence[int]] | None = None, *, timeout: float = COMPARISON_TIMEOUT
    ) -> admin_pb2.CompareAgentResponse:
        """What the controller in charge achieved beside a shadow agent, what the agent's plan would, and a verdict.

        `policy`, the action by step and state, in one row for a continuing task, is evaluated under what was learned, too.
        """
        reply: admin_pb2.CompareAgentResponse = self._call(
            self._admin.CompareAgent, requests.compare_agent(agent, policy), timeout
        )
        return reply

    def promote(
        self, agent: str, reason: str = "", *, force: bool = False, timeout: float = COMPARISON_TIMEOUT
    ) -> admin_pb2.UpdateAgentResponse:
        """Make a shadow agent live from its next episode on.

        Raises `FailedPreconditionError` unless its plan is certified and its gain is above zero by enough deviations; `force`
        promotes it all the same.
        """
        return self._set_mode(agent, "live", reason, timeout, force=force)

    def demote(self, agent: str, reason: str = "", *, timeout: float | None = None) -> admin_pb2.UpdateAgentResponse:
        """Put a live agent into shadow: from now on its actions are proposals."""
        return self._set_mode(agent, "shadow", reason, timeout)

    def correct_signal(
        self,
        agent: str,
        episode: int,
        step: int,
        *,
        reward: float | None = None,
        costs: Sequence[float] = (),
        incarnation: int = 0,
        timeout: float | None = None,
    ) -> control_pb2.CorrectSignalResponse:
        """Replace the reward or the costs that were reported of a step, once: for feedback that comes late.

        They must be learned, and the episode open or the latest closed. Repeated with the same values, it is a duplicate.
        """
        request = message_of(
            control_pb2.CorrectSignalRequest,
            agent=agent,
            episode=episode,
            step=step,
            reward=reward,
            costs=costs,
            incarnation=incarnation,
        )
        reply: control_pb2.CorrectSignalResponse = self._call(self._control.CorrectSignal, request, timeout)
        return reply

    def export_transitions(self, agent: str, *, timeout: float = COMPARISON_TIMEOUT) -> TransitionLog:
        """The transitions that the service still stores one by one, as a log that `warm_start_from_log` counts."""
        request = message_of(admin_pb2.ExportTransitionsRequest, agent=agent)

        def attempt() -> list[admin_pb2.ExportTransitionsResponse]:
            call = self._admin.ExportTransitions(request, timeout=timeout, metadata=self._metadata(agent))
            return list(call)

        return log_of(retry(attempt, min(self.patience, timeout), self.contact))

    def _set_mode(
        self, agent: str, mode: str, reason: str, timeout: float | None, *, force: bool = False
    ) -> admin_pb2.UpdateAgentResponse:
        request = requests.update_agent(agent, {"mode": mode}, reason, 0, dry_run=False, force=force)
        reply: admin_pb2.UpdateAgentResponse = self._call(self._admin.UpdateAgent, request, timeout)
        return reply
