"""The control plane over gRPC: decode, call, encode."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import structlog

from safe_psrl.learner import AgentState
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, events_pb2
from safe_psrl_server.agents.administration import Administration, spec_from_request
from safe_psrl_server.agents.comparisons import compare, preview_of, trial_of
from safe_psrl_server.agents.decisions import is_advisory
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.definition_checks import MAX_NAME, check_text
from safe_psrl_server.agents.epochs import next_start
from safe_psrl_server.agents.explanations import explanation_of
from safe_psrl_server.agents.history import history_of
from safe_psrl_server.agents.messages import pack
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.agents.status import definition_warnings, record_status, status_with_digest
from safe_psrl_server.agents.summaries import status_in
from safe_psrl_server.agents.validation import find_episode
from safe_psrl_server.config import Quotas
from safe_psrl_server.errors import InvalidArgumentError, NotFoundError
from safe_psrl_server.rpc.listing import StatusFeed, query_of, token_of
from safe_psrl_server.rpc.wire import check_fields
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.quotas import Turns, reserved_room
from safe_psrl_server.security.roles import Role
from safe_psrl_server.store import Summary, key_of

Context = Any  # grpc.aio.ServicerContext, which generated code and grpcio's stubs type differently
CHUNK = 256 * 1024
EPISODES_AT_ONCE = 100
THREADS_OF_A_CALLER = 2  # for creations, exports and other long work; plans have separate threads
Result = TypeVar("Result")
log = structlog.get_logger()


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Methods raise `ServiceError`; `AccessControl`, which surrounds every call, turns it into a status."""

    def __init__(self, administration: Administration, quotas: Quotas = Quotas()) -> None:  # noqa: B008  # immutable
        self._administration = administration
        self._quotas = quotas
        self._feed = StatusFeed(administration.agents)
        self._turns = Turns(THREADS_OF_A_CALLER)

    @property
    def _agents(self) -> AgentService:
        return self._administration.agents

    async def CreateAgent(self, request: admin_pb2.CreateAgentRequest, context: Context) -> admin_pb2.CreateAgentResponse:
        check_text("preset", request.preset, MAX_NAME)  # before the search for similar names, which takes longer
        spec = spec_from_request(request)

        async def create() -> bool:
            async with reserved_room(self._agents, self._quotas, request.agent, spec.cmdp):
                _, existed = await self._administration.create(request.agent, spec)
            return existed

        existed = await self._in_turn(request.agent, create)
        if not existed:
            _note("agent created", context, agent=request.agent)
        status = await self._read(request.agent, status_with_digest)
        definition = (await self._agents.record(request.agent)).definition
        warnings = await self._agents.threads.run(definition_warnings, definition)
        return admin_pb2.CreateAgentResponse(status=status, existed=existed, warnings=warnings)

    async def GetAgent(self, request: admin_pb2.GetAgentRequest, context: Context) -> admin_pb2.GetAgentResponse:
        response = admin_pb2.GetAgentResponse(status=await self._read(request.agent, status_with_digest))
        if request.with_spec:
            response.spec.CopyFrom((await self._agents.record(request.agent)).definition.message)
        return response

    async def ListAgents(self, request: admin_pb2.ListAgentsRequest, context: Context) -> admin_pb2.ListAgentsResponse:
        size, who = _page_size(request.page_size), caller().identity
        query, found = query_of(request, size + 1), list[Summary]()
        while len(found) <= size:
            page = await self._agents.find(query)
            found += [summary for summary in page if who.may(Role.READ, summary.agent)]
            if len(page) < query.limit:
                break
            query = query._replace(after=key_of(page[-1], query.order))
        response = admin_pb2.ListAgentsResponse(agents=map(status_in, found[:size]))
        if len(found) > size:
            response.next_page_token = token_of(found[size - 1], query)
        return response

    async def DeleteAgent(self, request: admin_pb2.DeleteAgentRequest, context: Context) -> admin_pb2.DeleteAgentResponse:
        await self._administration.delete(request.agent)
        _note("agent deleted", context, agent=request.agent)
        return admin_pb2.DeleteAgentResponse()

    async def PauseAgent(self, request: admin_pb2.PauseAgentRequest, context: Context) -> admin_pb2.PauseAgentResponse:
        record = await self._administration.pause(request.agent, request.reason)
        _note("agent paused", context, agent=request.agent, reason=request.reason)
        return admin_pb2.PauseAgentResponse(status=record_status(record))

    async def ResumeAgent(self, request: admin_pb2.ResumeAgentRequest, context: Context) -> admin_pb2.ResumeAgentResponse:
        record = await self._administration.resume(request.agent, request.reason)
        _note("agent resumed", context, agent=request.agent, reason=request.reason)
        return admin_pb2.ResumeAgentResponse(status=record_status(record))

    async def UpdateAgent(self, request: admin_pb2.UpdateAgentRequest, context: Context) -> admin_pb2.UpdateAgentResponse:
        updated = await self._in_turn(request.agent, lambda: self._administration.update(request))
        response = admin_pb2.UpdateAgentResponse(changes=updated.changes)
        if request.dry_run:
            known, *place = await self._read(request.agent, _place_of)
            for preview, definition in ((response.before, known), (response.after, updated.definition)):
                preview.CopyFrom(await self._agents.threads.run(preview_of, definition, *place))
        elif updated.changes and not request.dry_run:
            _note("agent updated", context, agent=request.agent, reason=request.reason, changes=updated.changes)
        response.status.CopyFrom(await self._read(request.agent, status_with_digest))
        response.warnings.extend(await self._agents.threads.run(definition_warnings, updated.definition))
        return response

    async def ListEvents(self, request: admin_pb2.ListEventsRequest, context: Context) -> admin_pb2.ListEventsResponse:
        size = _page_size(request.page_size)
        begin = int(request.page_token) if request.page_token.isdecimal() and len(request.page_token) < 10 else 0
        if request.page_token not in {"", str(begin)}:
            raise InvalidArgumentError("page_token", "must be that of an earlier reply")
        entries = (await self._agents.record(request.agent)).log[::-1]
        response = admin_pb2.ListEventsResponse(entries=entries[begin : begin + size])
        if begin + size < len(entries):
            response.next_page_token = str(begin + size)
        return response

    async def GetHistory(self, request: admin_pb2.GetHistoryRequest, context: Context) -> admin_pb2.GetHistoryResponse:
        return await self._read(request.agent, lambda record: history_of(record.series, record.log))

    async def GetPolicy(self, request: admin_pb2.GetPolicyRequest, context: Context) -> admin_pb2.GetPolicyResponse:
        record = await self._agents.record(request.agent)
        latest = record.latest_episode
        if latest is None:
            raise NotFoundError(f"agent {request.agent!r} has not begun an episode", "EPISODE_NOT_FOUND")
        episode = find_episode(record, request.episode) if request.episode else latest
        return admin_pb2.GetPolicyResponse(
            episode=episode.number, policy=episode.started.policy, advisory=is_advisory(record, episode)
        )

    async def ExplainAction(self, request: admin_pb2.ExplainActionRequest, context: Context) -> admin_pb2.ExplainActionResponse:
        async def work() -> admin_pb2.ExplainActionResponse:
            copy = partial(explanation_of, place=request.state, step=request.step)
            return await self._agents.threads.run(await self._agents.read(request.agent, copy))

        return await self._in_turn(request.agent, work)

    async def CompareAgent(self, request: admin_pb2.CompareAgentRequest, context: Context) -> admin_pb2.CompareAgentResponse:
        async def work() -> admin_pb2.CompareAgentResponse:
            trial = await self._agents.read(request.agent, trial_of)
            policy = request.policy if request.HasField("policy") else None
            return await self._agents.threads.run(compare, trial, policy)

        return await self._in_turn(request.agent, work)

    async def GetPosterior(self, request: admin_pb2.GetPosteriorRequest, context: Context) -> admin_pb2.GetPosteriorResponse:
        def packed(record: AgentRecord) -> admin_pb2.GetPosteriorResponse:
            counts = pack(record.state.transition_counts)
            return admin_pb2.GetPosteriorResponse(transition_counts=counts, version=record.version)

        return await self._read(request.agent, packed)

    async def WatchAgents(
        self, request: admin_pb2.WatchAgentsRequest, context: Context
    ) -> AsyncIterator[admin_pb2.WatchAgentsResponse]:
        interval = request.interval_seconds or 1.0
        if not 0.1 <= interval <= 60:
            raise InvalidArgumentError("interval_seconds", f"must be from 0.1 to 60, got {interval}")
        self._agents.runtime.check_ready()
        async for changes in self._feed.watch(interval, set(request.agents)):
            yield changes

    async def ExportAgent(
        self, request: admin_pb2.ExportAgentRequest, context: Context
    ) -> AsyncIterator[admin_pb2.ExportAgentResponse]:
        def packed(record: AgentRecord) -> tuple[bytes, bytes]:
            data = snapshot_of(record, with_policies=True).SerializeToString(deterministic=True)
            return data, hashlib.sha256(data).digest()

        data, digest = await self._read(request.agent, packed)
        for start in range(0, len(data), CHUNK):
            yield admin_pb2.ExportAgentResponse(chunk=data[start : start + CHUNK])
        yield admin_pb2.ExportAgentResponse(digest=digest)

    async def ExportTransitions(
        self, request: admin_pb2.ExportTransitionsRequest, context: Context
    ) -> AsyncIterator[admin_pb2.ExportTransitionsResponse]:
        found = await self._in_turn(request.agent, lambda: self._agents.stored_transitions(request.agent))
        for start in range(0, len(found.episodes), EPISODES_AT_ONCE):
            yield admin_pb2.ExportTransitionsResponse(transitions=found.episodes[start : start + EPISODES_AT_ONCE])
        names = (await self._agents.record(request.agent)).definition.spec.constraint_names
        yield admin_pb2.ExportTransitionsResponse(dropped=found.dropped, constraint_names=names)

    async def ImportAgent(
        self, request_iterator: AsyncIterator[admin_pb2.ImportAgentRequest], context: Context
    ) -> admin_pb2.ImportAgentResponse:
        name, data, digest = await _received(request_iterator, self._agents.limits.max_import_bytes)
        snapshot = await self._agents.threads.run(_snapshot_in, data, digest)

        async def create() -> None:
            async with reserved_room(self._agents, self._quotas, name, snapshot.spec.cmdp):
                await self._administration.import_snapshot(name, snapshot)

        await self._in_turn(name, create)
        _note("agent imported", context, agent=name)
        return admin_pb2.ImportAgentResponse(status=await self._read(name, status_with_digest))

    async def VerifyAgent(self, request: admin_pb2.VerifyAgentRequest, context: Context) -> admin_pb2.VerifyAgentResponse:
        found = await self._in_turn(request.agent, lambda: self._agents.verify(request.agent))
        difference = f"served version {found.served_version} and stored version {found.stored_version} differ"
        return admin_pb2.VerifyAgentResponse(
            ok=found.equal, difference="" if found.equal else difference, events=found.events_read, state_digest=found.digest
        )

    async def _read(self, agent: str, work: Callable[[AgentRecord], Result]) -> Result:
        return await self._in_turn(agent, lambda: self._agents.read(agent, work))

    async def _in_turn(self, agent: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run work that needs a thread. Each caller (without identities: each agent) may run a few at once; others wait.

        If the caller goes away, the work continues to its end and occupies its place until then.
        """
        turn = self._turns.of(caller().owner or agent)
        await turn.acquire()

        async def run() -> Result:
            try:
                return await work()
            finally:
                turn.release()

        return await asyncio.shield(asyncio.ensure_future(run()))


def _place_of(record: AgentRecord) -> tuple[Definition, AgentState, int]:
    """The input of a plan for the next episode or epoch."""
    return record.definition, record.copied_state(), next_start(record)


def _page_size(requested: int) -> int:
    if not 0 <= requested <= 1000:
        raise InvalidArgumentError("page_size", f"must be from 1 to 1000, got {requested}")
    return requested or 100


async def _received(requests: AsyncIterator[admin_pb2.ImportAgentRequest], most_bytes: int) -> tuple[str, bytes, bytes]:
    """The complete name, data and digest of an import. The data of a caller who may not import is not read."""
    name, data, digest = "", bytearray(), b""
    async for request in requests:
        if not name:
            name = request.agent
            caller().check(Role.ADMIN, name)
        data += request.chunk
        digest = request.digest or digest
        if len(data) > most_bytes:
            raise InvalidArgumentError("chunk", f"the import is larger than {most_bytes} bytes (limits.max_import_bytes)")
    return name, bytes(data), digest


def _snapshot_in(data: bytes, digest: bytes) -> events_pb2.Snapshot:
    if hashlib.sha256(data).digest() != digest:
        raise InvalidArgumentError("digest", "does not match the chunks: the export is damaged or incomplete")
    check_fields(data, events_pb2.Snapshot.DESCRIPTOR)
    try:
        return events_pb2.Snapshot.FromString(data)
    except Exception:  # noqa: BLE001  # protobuf raises a type of its own for every implementation
        raise InvalidArgumentError("chunk", "is not an export of an agent") from None


def _note(event: str, context: Context, **facts: object) -> None:
    """Log an administrative change of an agent in one line, with the caller's request id if it sent one."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if key == "x-request-id"}
    request_id = {"request_id": metadata["x-request-id"]} if metadata else {}
    log.info(event, **facts, **request_id, identity=caller().name, peer=context.peer())
