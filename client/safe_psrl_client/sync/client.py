# Generated from safe_psrl_client/aio by `make sync-client`: do not edit.
"""The client: every call of the service as a method, with a deadline. Replies are the protocol's messages."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

import grpc

from safe_psrl_client import requests
from safe_psrl_client.channel import DEFAULT_TARGET, DEFAULT_TIMEOUT, Metadata, call_metadata, open_channel, token_metadata
from safe_psrl_client.errors import error_of_call
from safe_psrl_client.exports import import_requests, seal_parts
from safe_psrl_client.fields import message_of
from safe_psrl_client.replies import AgentPolicy, AgentPosterior
from safe_psrl_client.requests import TRUNCATED, Transition
from safe_psrl_client.sync.episode import Episode
from safe_psrl_client.sync.retry import DEFAULT_PATIENCE, FIRST_CONTACT_SECONDS, FirstContact, retry
from safe_psrl_client.sync.sending import Sending
from safe_psrl_client.sync.stream import StepStream
from safe_psrl_client.sync.trust import TrustCalls
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, events_pb2, model_pb2

BULK_TIMEOUT: Final = 120.0  # seconds for calls that move or read a whole agent
WATCH_TIMEOUT: Final = 3600.0  # seconds; a server closes connections after an hour too
PAGE_SIZE: Final = 1000

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Client(Sending, TrustCalls):
    """Calls the service at `target`. May be shared between threads.

    timeout: deadline of each attempt in seconds, unless the call specifies one.
    patience: seconds for which a call is retried while the service is unavailable; at most the `timeout` given to a call.
        By default 30, but 1.5 until the service was reached once: then it raises `UnavailableError`, "no service at …".
    credentials: for TLS, made from files by `tls_credentials`.
    token: identifies the caller; needs TLS, unless the service is on this machine.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        patience: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
    ) -> None:
        self.target = target
        self.timeout = timeout
        self.patience = DEFAULT_PATIENCE if patience is None else patience
        self.contact = FirstContact(target, FIRST_CONTACT_SECONDS if patience is None else patience)
        self._identity = token_metadata(token, target, credentials)
        self._channel = open_channel(target, credentials)
        self._control = control_pb2_grpc.ControlServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._streams: WeakSet[StepStream] = WeakSet()

    def close(self) -> None:
        """Half-close and drain open streams, and close the connection."""
        for stream in list(self._streams):
            stream.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- playing

    def episode(self, agent: str, state: int, *, abandon_open: bool = False) -> Episode:
        """An episode that begins in `state` when it is entered; see `Episode`."""
        return Episode(self, agent, state, abandon_open=abandon_open)

    def start_episode(
        self,
        agent: str,
        state: int | None = None,
        *,
        request_id: str | None = None,
        with_policy: bool = False,
        abandon_open: bool = False,
        timeout: float | None = None,
    ) -> control_pb2.StartEpisodeResponse:
        """Begin an episode. Calling it again begins another one, unless with the `request_id` of the first call."""
        request = requests.start_episode(agent, state, request_id, with_policy=with_policy, abandon_open=abandon_open)
        return self.send_start(request, timeout)

    def get_action(
        self, agent: str, state: int, episode: int | None = None, step: int | None = None, *, timeout: float | None = None
    ) -> control_pb2.GetActionResponse:
        """The action for `state`. Without `episode`, of the open episode; one begins if none is open. Can be repeated."""
        request = message_of(control_pb2.GetActionRequest, agent=agent, state=state, episode=episode, step=step)
        return self._call(self._control.GetAction, request, timeout)

    def report_transition(
        self, agent: str, episode: int, step: int, seen: Transition, *, timeout: float | None = None
    ) -> control_pb2.ReportTransitionResponse:
        """Report one step, without requesting the next action. Repeated with the same values, it is a duplicate."""
        request = requests.report_transition(agent, episode, step, seen)
        return self._call(self._control.ReportTransition, request, timeout)

    def step(
        self, agent: str, episode: int, step: int, seen: Transition, *, timeout: float | None = None
    ) -> control_pb2.StepResponse:
        """Report one step and receive the next action, in one call."""
        return self.send_step(requests.step(agent, episode, step, seen), timeout)

    def step_stream(self, agent: str = "", *, timeout: float | None = None) -> StepStream:
        """A stream of steps that ends after `timeout` seconds. `agent` is for routing; every message names its own."""
        stream = StepStream(self._control.StepStream, self._metadata(agent), timeout or 2 * self.timeout)
        self._streams.add(stream)
        return stream

    def report_episode(
        self, agent: str, episode: int, seen: Iterable[Transition], *, incarnation: int = 0, timeout: float | None = None
    ) -> control_pb2.ReportEpisodeResponse:
        """Report the steps of an episode from its first one on. Steps that were reported before are skipped."""
        return self.send_report(requests.report_episode(agent, episode, list(seen), incarnation), timeout)

    def end_episode(
        self,
        agent: str,
        episode: int,
        end: "events_pb2.EpisodeEnd.ValueType" = TRUNCATED,
        *,
        incarnation: int = 0,
        timeout: float | None = None,
    ) -> control_pb2.EndEpisodeResponse:
        """End an episode before its horizon: truncated, or abandoned. Its reported steps stay learned."""
        request = message_of(control_pb2.EndEpisodeRequest, agent=agent, episode=episode, end=end, incarnation=incarnation)
        return self._call(self._control.EndEpisode, request, timeout)

    # --- administration

    def create_agent(
        self,
        agent: str,
        definition: model_pb2.AgentSpec | str,
        *,
        options: model_pb2.SafePsrlOptions | Mapping[str, Any] | None = None,
        seed: int = 0,
        timeout: float | None = None,
    ) -> admin_pb2.CreateAgentResponse:
        """`definition` in full, or the name of a preset with its `options` and `seed`."""
        return self._call(self._admin.CreateAgent, requests.create_agent(agent, definition, options, seed), timeout)

    def get_agent(self, agent: str, *, with_spec: bool = False, timeout: float | None = None) -> admin_pb2.GetAgentResponse:
        """One agent's status, and its definition if `with_spec`."""
        return self._call(
            self._admin.GetAgent, message_of(admin_pb2.GetAgentRequest, agent=agent, with_spec=with_spec), timeout
        )

    def list_agents(self, *, timeout: float | None = None, **query: Any) -> Iterator[admin_pb2.AgentStatus]:
        """All agents by name, page after page. `query`: fields of `ListAgentsRequest`, such as `prefix="cell/"`."""
        request = message_of(admin_pb2.ListAgentsRequest, **{"page_size": PAGE_SIZE, **query})
        while True:
            page = self._call(self._admin.ListAgents, request, timeout)
            for status in page.agents:
                yield status
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def delete_agent(self, agent: str, *, timeout: float | None = None) -> None:
        """Delete an agent and all that it learned."""
        self._call(self._admin.DeleteAgent, message_of(admin_pb2.DeleteAgentRequest, agent=agent), timeout)

    def pause_agent(self, agent: str, reason: str = "", *, timeout: float | None = None) -> admin_pb2.AgentStatus:
        """No new episodes until it is resumed; the fallback policy acts, if there is one."""
        request = message_of(admin_pb2.PauseAgentRequest, agent=agent, reason=reason)
        return (self._call(self._admin.PauseAgent, request, timeout)).status

    def resume_agent(self, agent: str, reason: str = "", *, timeout: float | None = None) -> admin_pb2.AgentStatus:
        """Allow new episodes again."""
        request = message_of(admin_pb2.ResumeAgentRequest, agent=agent, reason=reason)
        return (self._call(self._admin.ResumeAgent, request, timeout)).status

    def update_agent(
        self,
        agent: str,
        changes: Mapping[str, Any],
        *,
        reason: str = "",
        expected_version: int = 0,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> admin_pb2.UpdateAgentResponse:
        """Change the definition from the next episode on: new values by field, as `{"constraints.delay.cost_budget": 4}`.

        The fields are those of `safe_psrl_client.updates`; None stands for the default. With `dry_run` nothing changes, and
        the reply has the plan for the next episode before and after. With `expected_version`, the status's
        `definition_version`, an update of a definition that has changed since is refused.
        """
        request = requests.update_agent(agent, changes, reason, expected_version, dry_run=dry_run)
        return self._call(self._admin.UpdateAgent, request, timeout)

    def list_events(self, agent: str, *, timeout: float | None = None) -> Iterator[events_pb2.LogEntry]:
        """Who did what, when, and why, the latest first; and when drift was detected."""
        request = message_of(admin_pb2.ListEventsRequest, agent=agent, page_size=PAGE_SIZE)
        while True:
            page = self._call(self._admin.ListEvents, request, timeout)
            for entry in page.entries:
                yield entry
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def get_history(self, agent: str, *, timeout: float | None = None) -> admin_pb2.GetHistoryResponse:
        """Costs, budgets and rewards by episode over the agent's whole life, in at most 1,024 points; and its log."""
        return self._call(self._admin.GetHistory, message_of(admin_pb2.GetHistoryRequest, agent=agent), timeout)

    def get_policy(self, agent: str, episode: int = 0, *, timeout: float | None = None) -> AgentPolicy:
        """The policy of an episode that is open or was lately, as `actions` by step and state; 0 is the latest episode."""
        request = message_of(admin_pb2.GetPolicyRequest, agent=agent, episode=episode)
        reply = self._call(self._admin.GetPolicy, request, timeout)
        return AgentPolicy(reply.episode, reply.policy, reply.advisory)

    def explain_action(
        self, agent: str, state: int, step: int = 0, *, timeout: float = BULK_TIMEOUT
    ) -> admin_pb2.ExplainActionResponse:
        """What each action available in `state` at `step` leads to under the latest policy, and what other budgets change."""
        request = message_of(admin_pb2.ExplainActionRequest, agent=agent, state=state, step=step)
        return self._call(self._admin.ExplainAction, request, timeout)

    def get_posterior(self, agent: str, *, timeout: float | None = None) -> AgentPosterior:
        """How often each transition was observed, as `counts` by step, state, action and next state."""
        reply = self._call(self._admin.GetPosterior, message_of(admin_pb2.GetPosteriorRequest, agent=agent), timeout)
        return AgentPosterior(reply.transition_counts, reply.version)

    def watch_agents(
        self, agents: Iterable[str] = (), interval: float = 0.0, *, timeout: float = WATCH_TIMEOUT
    ) -> Iterator[admin_pb2.WatchAgentsResponse]:
        """Status whenever it changes, until it is closed or `timeout` has passed. It is not retried."""
        request = message_of(admin_pb2.WatchAgentsRequest, agents=agents, interval_seconds=interval)
        call = self._admin.WatchAgents(request, timeout=timeout, metadata=self._metadata(""))
        try:
            for reply in call:
                yield reply
        except grpc.RpcError as error:
            raise error_of_call(error) from error
        finally:
            call.cancel()

    def export_agent(self, agent: str, *, timeout: float = BULK_TIMEOUT) -> bytes:
        """All that another service needs to continue the agent, as bytes for a file or for `import_agent`."""
        request = message_of(admin_pb2.ExportAgentRequest, agent=agent)

        def attempt() -> bytes:
            call = self._admin.ExportAgent(request, timeout=timeout, metadata=self._metadata(agent))
            parts = list(call)
            return seal_parts(parts)

        return retry(attempt, min(self.patience, timeout), self.contact)

    def import_agent(self, agent: str, content: bytes, *, timeout: float = BULK_TIMEOUT) -> admin_pb2.AgentStatus:
        """Create `agent` from the result of `export_agent`."""
        parts, metadata = list(import_requests(agent, content)), self._metadata(agent)
        seconds = min(self.patience, timeout)

        def attempt() -> admin_pb2.ImportAgentResponse:
            return self._admin.ImportAgent(iter(parts), timeout=timeout, metadata=metadata)

        return (retry(attempt, seconds, self.contact)).status

    def verify_agent(self, agent: str, *, timeout: float = BULK_TIMEOUT) -> admin_pb2.VerifyAgentResponse:
        """Rebuild the agent from its stored events, and compare it with the served one."""
        return self._call(self._admin.VerifyAgent, message_of(admin_pb2.VerifyAgentRequest, agent=agent), timeout)

    def _metadata(self, agent: str) -> Metadata:
        return call_metadata(agent) + self._identity

    def _call(
        self, method: "grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]", request: RequestT, timeout: float | None
    ) -> ResponseT:
        metadata = self._metadata(getattr(request, "agent", ""))
        seconds = self.patience if timeout is None else min(self.patience, timeout)

        def attempt() -> ResponseT:
            return method(request, timeout=timeout or self.timeout, metadata=metadata)

        return retry(attempt, seconds, self.contact)
