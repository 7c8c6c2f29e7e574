"""The client: every call of the service as a method, with a deadline. Replies are the protocol's messages."""
# ruff: noqa: ASYNC109  # `timeout` is the call's own deadline, which the server sees too

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

import grpc

from safe_psrl_client import requests
from safe_psrl_client.aio.episode import AsyncEpisode
from safe_psrl_client.aio.retry import DEFAULT_PATIENCE, FIRST_CONTACT_SECONDS, FirstContact, retry
from safe_psrl_client.aio.sending import AsyncSending
from safe_psrl_client.aio.stream import AsyncStepStream
from safe_psrl_client.aio.trust import AsyncTrustCalls
from safe_psrl_client.channel import DEFAULT_TARGET, DEFAULT_TIMEOUT, Metadata, call_metadata, open_aio_channel, token_metadata
from safe_psrl_client.errors import error_of_call
from safe_psrl_client.exports import import_requests, seal_parts
from safe_psrl_client.fields import message_of
from safe_psrl_client.replies import AgentPolicy, AgentPosterior
from safe_psrl_client.requests import TRUNCATED, Transition
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, events_pb2, model_pb2

BULK_TIMEOUT: Final = 120.0  # seconds for calls that move or read a whole agent
WATCH_TIMEOUT: Final = 3600.0  # seconds; a server closes connections after an hour too
PAGE_SIZE: Final = 1000

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class AsyncClient(AsyncSending, AsyncTrustCalls):
    """Calls the service at `target`. The asyncio client belongs to one event loop; the other may be shared between threads.

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
        self._channel = open_aio_channel(target, credentials)
        self._control = control_pb2_grpc.ControlServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._streams: WeakSet[AsyncStepStream] = WeakSet()

    async def close(self) -> None:
        """Half-close and drain open streams, and close the connection."""
        for stream in list(self._streams):
            await stream.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- playing

    def episode(self, agent: str, state: int, *, abandon_open: bool = False) -> AsyncEpisode:
        """An episode that begins in `state` when it is entered; see `AsyncEpisode`."""
        return AsyncEpisode(self, agent, state, abandon_open=abandon_open)

    async def start_episode(
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
        return await self.send_start(request, timeout)

    async def get_action(
        self, agent: str, state: int, episode: int | None = None, step: int | None = None, *, timeout: float | None = None
    ) -> control_pb2.GetActionResponse:
        """The action for `state`. Without `episode`, of the open episode; one begins if none is open. Can be repeated."""
        request = message_of(control_pb2.GetActionRequest, agent=agent, state=state, episode=episode, step=step)
        return await self._call(self._control.GetAction, request, timeout)

    async def report_transition(
        self, agent: str, episode: int, step: int, seen: Transition, *, timeout: float | None = None
    ) -> control_pb2.ReportTransitionResponse:
        """Report one step, without requesting the next action. Repeated with the same values, it is a duplicate."""
        request = requests.report_transition(agent, episode, step, seen)
        return await self._call(self._control.ReportTransition, request, timeout)

    async def step(
        self, agent: str, episode: int, step: int, seen: Transition, *, timeout: float | None = None
    ) -> control_pb2.StepResponse:
        """Report one step and receive the next action, in one call."""
        return await self.send_step(requests.step(agent, episode, step, seen), timeout)

    def step_stream(self, agent: str = "", *, timeout: float | None = None) -> AsyncStepStream:
        """A stream of steps that ends after `timeout` seconds. `agent` is for routing; every message names its own."""
        stream = AsyncStepStream(self._control.StepStream, self._metadata(agent), timeout or 2 * self.timeout)
        self._streams.add(stream)
        return stream

    async def report_episode(
        self, agent: str, episode: int, seen: Iterable[Transition], *, incarnation: int = 0, timeout: float | None = None
    ) -> control_pb2.ReportEpisodeResponse:
        """Report the steps of an episode from its first one on. Steps that were reported before are skipped."""
        return await self.send_report(requests.report_episode(agent, episode, list(seen), incarnation), timeout)

    async def end_episode(
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
        return await self._call(self._control.EndEpisode, request, timeout)

    # --- administration

    async def create_agent(
        self,
        agent: str,
        definition: model_pb2.AgentSpec | str,
        *,
        options: model_pb2.SafePsrlOptions | Mapping[str, Any] | None = None,
        seed: int = 0,
        timeout: float | None = None,
    ) -> admin_pb2.CreateAgentResponse:
        """`definition` in full, or the name of a preset with its `options` and `seed`."""
        return await self._call(self._admin.CreateAgent, requests.create_agent(agent, definition, options, seed), timeout)

    async def get_agent(
        self, agent: str, *, with_spec: bool = False, timeout: float | None = None
    ) -> admin_pb2.GetAgentResponse:
        """One agent's status, and its definition if `with_spec`."""
        return await self._call(
            self._admin.GetAgent, message_of(admin_pb2.GetAgentRequest, agent=agent, with_spec=with_spec), timeout
        )

    async def list_agents(self, *, timeout: float | None = None, **query: Any) -> AsyncIterator[admin_pb2.AgentStatus]:
        """All agents by name, page after page. `query`: fields of `ListAgentsRequest`, such as `prefix="cell/"`."""
        request = message_of(admin_pb2.ListAgentsRequest, **{"page_size": PAGE_SIZE, **query})
        while True:
            page = await self._call(self._admin.ListAgents, request, timeout)
            for status in page.agents:
                yield status
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def delete_agent(self, agent: str, *, timeout: float | None = None) -> None:
        """Delete an agent and all that it learned."""
        await self._call(self._admin.DeleteAgent, message_of(admin_pb2.DeleteAgentRequest, agent=agent), timeout)

    async def pause_agent(self, agent: str, reason: str = "", *, timeout: float | None = None) -> admin_pb2.AgentStatus:
        """No new episodes until it is resumed; the fallback policy acts, if there is one."""
        request = message_of(admin_pb2.PauseAgentRequest, agent=agent, reason=reason)
        return (await self._call(self._admin.PauseAgent, request, timeout)).status

    async def resume_agent(self, agent: str, reason: str = "", *, timeout: float | None = None) -> admin_pb2.AgentStatus:
        """Allow new episodes again."""
        request = message_of(admin_pb2.ResumeAgentRequest, agent=agent, reason=reason)
        return (await self._call(self._admin.ResumeAgent, request, timeout)).status

    async def update_agent(
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
        return await self._call(self._admin.UpdateAgent, request, timeout)

    async def list_events(self, agent: str, *, timeout: float | None = None) -> AsyncIterator[events_pb2.LogEntry]:
        """Who did what, when, and why, the latest first; and when drift was detected."""
        request = message_of(admin_pb2.ListEventsRequest, agent=agent, page_size=PAGE_SIZE)
        while True:
            page = await self._call(self._admin.ListEvents, request, timeout)
            for entry in page.entries:
                yield entry
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def get_history(self, agent: str, *, timeout: float | None = None) -> admin_pb2.GetHistoryResponse:
        """Costs, budgets and rewards by episode over the agent's whole life, in at most 1,024 points; and its log."""
        return await self._call(self._admin.GetHistory, message_of(admin_pb2.GetHistoryRequest, agent=agent), timeout)

    async def get_policy(self, agent: str, episode: int = 0, *, timeout: float | None = None) -> AgentPolicy:
        """The policy of an episode that is open or was lately, as `actions` by step and state; 0 is the latest episode."""
        request = message_of(admin_pb2.GetPolicyRequest, agent=agent, episode=episode)
        reply = await self._call(self._admin.GetPolicy, request, timeout)
        return AgentPolicy(reply.episode, reply.policy, reply.advisory)

    async def explain_action(
        self, agent: str, state: int, step: int = 0, *, timeout: float = BULK_TIMEOUT
    ) -> admin_pb2.ExplainActionResponse:
        """What each action available in `state` at `step` leads to under the latest policy, and what other budgets change."""
        request = message_of(admin_pb2.ExplainActionRequest, agent=agent, state=state, step=step)
        return await self._call(self._admin.ExplainAction, request, timeout)

    async def get_posterior(self, agent: str, *, timeout: float | None = None) -> AgentPosterior:
        """How often each transition was observed, as `counts` by step, state, action and next state."""
        reply = await self._call(self._admin.GetPosterior, message_of(admin_pb2.GetPosteriorRequest, agent=agent), timeout)
        return AgentPosterior(reply.transition_counts, reply.version)

    async def watch_agents(
        self, agents: Iterable[str] = (), interval: float = 0.0, *, timeout: float = WATCH_TIMEOUT
    ) -> AsyncIterator[admin_pb2.WatchAgentsResponse]:
        """Status whenever it changes, until it is closed or `timeout` has passed. It is not retried."""
        request = message_of(admin_pb2.WatchAgentsRequest, agents=agents, interval_seconds=interval)
        call = self._admin.WatchAgents(request, timeout=timeout, metadata=self._metadata(""))
        try:
            async for reply in call:
                yield reply
        except grpc.RpcError as error:
            raise error_of_call(error) from error
        finally:
            call.cancel()

    async def export_agent(self, agent: str, *, timeout: float = BULK_TIMEOUT) -> bytes:
        """All that another service needs to continue the agent, as bytes for a file or for `import_agent`."""
        request = message_of(admin_pb2.ExportAgentRequest, agent=agent)

        async def attempt() -> bytes:
            call = self._admin.ExportAgent(request, timeout=timeout, metadata=self._metadata(agent))
            parts = [part async for part in call]
            return seal_parts(parts)

        return await retry(attempt, min(self.patience, timeout), self.contact)

    async def import_agent(self, agent: str, content: bytes, *, timeout: float = BULK_TIMEOUT) -> admin_pb2.AgentStatus:
        """Create `agent` from the result of `export_agent`."""
        parts, metadata = list(import_requests(agent, content)), self._metadata(agent)
        seconds = min(self.patience, timeout)

        def attempt() -> Awaitable[admin_pb2.ImportAgentResponse]:
            return self._admin.ImportAgent(iter(parts), timeout=timeout, metadata=metadata)

        return (await retry(attempt, seconds, self.contact)).status

    async def verify_agent(self, agent: str, *, timeout: float = BULK_TIMEOUT) -> admin_pb2.VerifyAgentResponse:
        """Rebuild the agent from its stored events, and compare it with the served one."""
        return await self._call(self._admin.VerifyAgent, message_of(admin_pb2.VerifyAgentRequest, agent=agent), timeout)

    def _metadata(self, agent: str) -> Metadata:
        return call_metadata(agent) + self._identity

    async def _call(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]", request: RequestT, timeout: float | None
    ) -> ResponseT:
        metadata = self._metadata(getattr(request, "agent", ""))
        seconds = self.patience if timeout is None else min(self.patience, timeout)

        def attempt() -> Awaitable[ResponseT]:
            return method(request, timeout=timeout or self.timeout, metadata=metadata)

        return await retry(attempt, seconds, self.contact)
