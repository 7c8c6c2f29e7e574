"""`AsyncClient`: `Client` for asyncio. Its methods mean the same; see there."""
# ruff: noqa: ASYNC109  # `timeout` is the call's own deadline, which the server sees too

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

import grpc

from safe_psrl_client import requests
from safe_psrl_client.channel import DEFAULT_TARGET, DEFAULT_TIMEOUT, call_metadata, open_aio_channel
from safe_psrl_client.client import BULK_TIMEOUT, PAGE_SIZE
from safe_psrl_client.credentials import Metadata, token_metadata
from safe_psrl_client.cursor import EpisodeCursor
from safe_psrl_client.episode import TRUNCATED, AsyncEpisode
from safe_psrl_client.errors import error_of_call, error_of_status
from safe_psrl_client.exports import Assembly, import_requests
from safe_psrl_client.patience import DEFAULT_PATIENCE
from safe_psrl_client.requests import Transition
from safe_psrl_client.stream import Call, stream_batches
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, events_pb2, model_pb2

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class AsyncClient:
    """Calls the service at `target` from one event loop."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        patience: float = DEFAULT_PATIENCE,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
    ) -> None:
        self.target = target
        self.timeout = timeout
        self.patience = patience
        self._identity = token_metadata(token, target, credentials)
        self._channel = open_aio_channel(target, credentials)
        self._control = control_pb2_grpc.ControlServiceStub(self._channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- playing

    def episode(self, agent: str, state: int, *, abandon_open: bool = False) -> AsyncEpisode:
        return AsyncEpisode(self, EpisodeCursor(agent, state, abandon_open=abandon_open))

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
        request = requests.start_episode(agent, state, request_id, with_policy=with_policy, abandon_open=abandon_open)
        return await self.send_start(request, timeout)

    async def get_action(
        self, agent: str, state: int, episode: int | None = None, step: int | None = None, *, timeout: float | None = None
    ) -> control_pb2.GetActionResponse:
        return await self._call(self._control.GetAction, requests.get_action(agent, state, episode, step), timeout)

    async def report_transition(
        self, agent: str, episode: int, step: int, seen: Transition, *, timeout: float | None = None
    ) -> control_pb2.ReportTransitionResponse:
        request = requests.report_transition(agent, episode, step, seen)
        return await self._call(self._control.ReportTransition, request, timeout)

    async def step(
        self, agent: str, episode: int, step: int, seen: Transition, *, timeout: float | None = None
    ) -> control_pb2.StepResponse:
        return await self.send_step(requests.step(agent, episode, step, seen), timeout)

    async def step_stream(
        self, messages: AsyncIterator[control_pb2.StepStreamRequest], agent: str = "", *, timeout: float | None = None
    ) -> AsyncGenerator[control_pb2.StepStreamResponse]:
        """The replies to `messages`, in order. A reply may have an error of its own; see `errors.error_of_status`."""
        async with _translated():
            call = self._control.StepStream(
                messages, timeout=timeout or self.timeout, metadata=self._metadata(agent), wait_for_ready=True
            )
            try:
                async for reply in call:
                    yield reply
            finally:
                call.cancel()

    async def exchange_all(
        self, calls: Iterable[Call], agent: str = "", *, timeout: float | None = None
    ) -> list[control_pb2.StepStreamResponse]:
        """`StepStream.exchange_all`, over a stream of its own. Keep one open by giving `stream_batches` to `step_stream`."""

        async def messages() -> AsyncIterator[control_pb2.StepStreamRequest]:
            for batch in stream_batches(calls):
                yield batch

        replies: list[control_pb2.StepStreamResponse] = []
        async with aclosing(self.step_stream(messages(), agent, timeout=timeout)) as stream:
            async for reply in stream:
                if reply.HasField("error"):  # of the batch itself
                    raise error_of_status(reply.error)
                replies += reply.batch.replies
        return replies

    async def report_episode(
        self, agent: str, episode: int, seen: Iterable[Transition], *, timeout: float | None = None
    ) -> control_pb2.ReportEpisodeResponse:
        return await self._call(self._control.ReportEpisode, requests.report_episode(agent, episode, list(seen)), timeout)

    async def end_episode(
        self, agent: str, episode: int, end: "events_pb2.EpisodeEnd.ValueType" = TRUNCATED, *, timeout: float | None = None
    ) -> control_pb2.EndEpisodeResponse:
        return await self.send_end(control_pb2.EndEpisodeRequest(agent=agent, episode=episode, end=end), timeout)

    async def send_start(
        self, request: control_pb2.StartEpisodeRequest, timeout: float | None = None
    ) -> control_pb2.StartEpisodeResponse:
        return await self._call(self._control.StartEpisode, request, timeout)

    async def send_step(self, request: control_pb2.StepRequest, timeout: float | None = None) -> control_pb2.StepResponse:
        return await self._call(self._control.Step, request, timeout)

    async def send_end(
        self, request: control_pb2.EndEpisodeRequest, timeout: float | None = None
    ) -> control_pb2.EndEpisodeResponse:
        return await self._call(self._control.EndEpisode, request, timeout)

    # --- administration

    async def create_agent(
        self,
        agent: str,
        definition: model_pb2.AgentSpec | str,
        *,
        options: model_pb2.SafePsrlOptions | None = None,
        seed: int = 0,
        timeout: float | None = None,
    ) -> admin_pb2.CreateAgentResponse:
        return await self._call(self._admin.CreateAgent, requests.create_agent(agent, definition, options, seed), timeout)

    async def get_agent(
        self, agent: str, *, with_spec: bool = False, timeout: float | None = None
    ) -> admin_pb2.GetAgentResponse:
        return await self._call(self._admin.GetAgent, admin_pb2.GetAgentRequest(agent=agent, with_spec=with_spec), timeout)

    async def list_agents(self, *, timeout: float | None = None) -> AsyncIterator[admin_pb2.AgentStatus]:
        request = admin_pb2.ListAgentsRequest(page_size=PAGE_SIZE)
        while True:
            page = await self._call(self._admin.ListAgents, request, timeout)
            for status in page.agents:
                yield status
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def delete_agent(self, agent: str, *, timeout: float | None = None) -> None:
        await self._call(self._admin.DeleteAgent, admin_pb2.DeleteAgentRequest(agent=agent), timeout)

    async def pause_agent(self, agent: str, reason: str = "", *, timeout: float | None = None) -> admin_pb2.AgentStatus:
        request = admin_pb2.PauseAgentRequest(agent=agent, reason=reason)
        return (await self._call(self._admin.PauseAgent, request, timeout)).status

    async def resume_agent(self, agent: str, *, timeout: float | None = None) -> admin_pb2.AgentStatus:
        request = admin_pb2.ResumeAgentRequest(agent=agent)
        return (await self._call(self._admin.ResumeAgent, request, timeout)).status

    async def get_policy(self, agent: str, episode: int = 0, *, timeout: float | None = None) -> admin_pb2.GetPolicyResponse:
        return await self._call(self._admin.GetPolicy, admin_pb2.GetPolicyRequest(agent=agent, episode=episode), timeout)

    async def get_posterior(self, agent: str, *, timeout: float | None = None) -> admin_pb2.GetPosteriorResponse:
        return await self._call(self._admin.GetPosterior, admin_pb2.GetPosteriorRequest(agent=agent), timeout)

    async def watch_agents(
        self, agents: Iterable[str] = (), interval: float = 0.0, *, timeout: float | None = None
    ) -> AsyncIterator[admin_pb2.WatchAgentsResponse]:
        request = admin_pb2.WatchAgentsRequest(agents=agents, interval_seconds=interval)
        async with _translated():
            call = self._admin.WatchAgents(request, timeout=timeout, metadata=self._metadata(""), wait_for_ready=True)
            try:
                async for reply in call:
                    yield reply
            finally:
                call.cancel()

    async def export_agent(self, agent: str, *, timeout: float = BULK_TIMEOUT) -> bytes:
        parts, request = Assembly(), admin_pb2.ExportAgentRequest(agent=agent)
        async with _translated():
            async for part in self._admin.ExportAgent(
                request, timeout=timeout, metadata=self._metadata(agent), wait_for_ready=True
            ):
                parts.add(part)
        return parts.sealed()

    async def import_agent(self, agent: str, content: bytes, *, timeout: float = BULK_TIMEOUT) -> admin_pb2.AgentStatus:
        parts = list(import_requests(agent, content))
        async with _translated():
            reply = await self._admin.ImportAgent(
                iter(parts), timeout=timeout, metadata=self._metadata(agent), wait_for_ready=True
            )
        return reply.status

    async def verify_agent(self, agent: str, *, timeout: float = BULK_TIMEOUT) -> admin_pb2.VerifyAgentResponse:
        return await self._call(self._admin.VerifyAgent, admin_pb2.VerifyAgentRequest(agent=agent), timeout)

    def _metadata(self, agent: str) -> Metadata:
        return call_metadata(agent) + self._identity

    async def _call(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]", request: RequestT, timeout: float | None
    ) -> ResponseT:
        metadata = self._metadata(getattr(request, "agent", ""))
        async with _translated():
            return await method(request, timeout=timeout or self.timeout, metadata=metadata, wait_for_ready=True)


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise error_of_call(error) from error
