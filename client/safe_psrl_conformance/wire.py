"""The calls as they are on the wire: generated stubs on a channel that repeats nothing by itself, and agents to try them on."""

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from safe_psrl_client.channel import MAX_MESSAGE_BYTES, call_metadata, checked_target
from safe_psrl_client.credentials import token_metadata
from safe_psrl_client.errors import DOMAIN, error_of_call
from safe_psrl_client.sync.retry import retry
from safe_psrl_client.sync.stream import StepStream
from safe_psrl_conformance.check import FailedError, require, same
from safe_psrl_conformance.problem import agent_spec
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, model_pb2

PREFIX: Final = "conformance-"
OPTIONS: Final = (
    ("grpc.enable_retries", 0),  # what fails is to be seen
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


class Refusal(NamedTuple):
    """A call that was answered with a status."""

    code: str
    message: str
    domain: str
    reason: str
    metadata: dict[str, str]
    fields: list[str]


class Wire:
    """A channel to `target`, and the agents that were made over it. Their names begin with `prefix`."""

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        timeout: float = 10.0,
        prefix: str = PREFIX,
    ) -> None:
        address = checked_target(target)
        self._identity = token_metadata(token, target, credentials)
        self.timeout = timeout
        if credentials is None:
            self.channel = grpc.insecure_channel(address, OPTIONS)
        else:
            self.channel = grpc.secure_channel(address, credentials, OPTIONS)
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.prefix = f"{prefix}{uuid.uuid4().hex[:12]}"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        try:
            self.tidy()
        finally:
            self.channel.close()

    def tidy(self) -> None:
        """Delete every agent that may have been made; those that were not are not missed."""
        for name in reversed(self._made):
            with suppress(grpc.RpcError):
                self.call(self.admin.DeleteAgent, admin_pb2.DeleteAgentRequest(agent=name))
        self._made.clear()

    def probe(self, wait: float = 0.0) -> None:
        """Raise the client library's error if nobody answers for so long, or the caller may not make agents."""
        name = self.new_name()

        def create() -> None:
            try:
                self.create(name)
            except grpc.RpcError as error:
                raise error_of_call(error) from None

        retry(create, wait)
        self.tidy()

    # --- calling

    def options(self, agent: str, timeout: float | None = None) -> dict[str, Any]:
        """What goes along with a call."""
        return {"timeout": timeout or self.timeout, "metadata": self._identity + call_metadata(agent)}

    def call(self, method: Callable[..., Any], request: Any, timeout: float | None = None) -> Any:
        return method(request, **self.options(getattr(request, "agent", ""), timeout))

    def raw(self, method: str, request: bytes, agent: str = "") -> bytes:
        """A call by its name, with bytes for request and reply."""
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(method, None, None)
        return call(request, **self.options(agent))

    def raw_stream(self, method: str, requests: Iterable[bytes]) -> list[bytes]:
        """The same for a bidirectional stream, half-closed after the last request."""
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(method, None, None)
        return list(call(iter(requests), **self.options("")))

    def stream(self, agent: str, requests: Iterable[control_pb2.StepStreamRequest]) -> list[control_pb2.StepStreamResponse]:
        """All replies to `requests`, sent one after the other, then half-closed."""
        return list(self.control.StepStream(iter(requests), **self.options(agent)))

    def open_stream(self, agent: str) -> StepStream:
        """A stream to exchange messages on one by one."""
        return StepStream(self.control.StepStream, self._identity + call_metadata(agent), self.timeout)

    # --- agents

    def new_name(self) -> str:
        """A name that is deleted at the end, whatever becomes of it."""
        name = f"{self.prefix}-{len(self._made)}"
        self._made.append(name)
        return name

    def create(self, name: str = "", spec: model_pb2.AgentSpec | None = None) -> str:
        name = name or self.new_name()
        self.call(self.admin.CreateAgent, admin_pb2.CreateAgentRequest(agent=name, spec=spec or agent_spec()))
        return name

    def status(self, name: str) -> admin_pb2.AgentStatus:
        found: admin_pb2.AgentStatus = self.call(self.admin.GetAgent, admin_pb2.GetAgentRequest(agent=name)).status
        return found

    # --- the data plane

    def start(self, name: str, timeout: float | None = None, **fields: Any) -> control_pb2.StartEpisodeResponse:
        reply: control_pb2.StartEpisodeResponse
        reply = self.call(self.control.StartEpisode, control_pb2.StartEpisodeRequest(agent=name, **fields), timeout)
        return reply

    def act(self, name: str, state: int, **fields: Any) -> control_pb2.GetActionResponse:
        reply: control_pb2.GetActionResponse
        reply = self.call(self.control.GetAction, control_pb2.GetActionRequest(agent=name, state=state, **fields))
        return reply

    def report(self, name: str, seen: control_pb2.Transition, **fields: Any) -> control_pb2.ReportTransitionResponse:
        request = control_pb2.ReportTransitionRequest(agent=name, transition=seen, **fields)
        reply: control_pb2.ReportTransitionResponse = self.call(self.control.ReportTransition, request)
        return reply

    def step(self, name: str, seen: control_pb2.Transition, **fields: Any) -> control_pb2.StepResponse:
        request = control_pb2.StepRequest(agent=name, transition=seen, **fields)
        reply: control_pb2.StepResponse = self.call(self.control.Step, request)
        return reply

    def report_episode(
        self, name: str, episode: int, seen: Iterable[control_pb2.Transition], **fields: Any
    ) -> control_pb2.ReportEpisodeResponse:
        request = control_pb2.ReportEpisodeRequest(agent=name, episode=episode, transitions=seen, **fields)
        reply: control_pb2.ReportEpisodeResponse = self.call(self.control.ReportEpisode, request)
        return reply

    def end(self, name: str, episode: int, end: Any = 0) -> control_pb2.EndEpisodeResponse:
        request = control_pb2.EndEpisodeRequest(agent=name, episode=episode, end=end)
        reply: control_pb2.EndEpisodeResponse = self.call(self.control.EndEpisode, request)
        return reply

    # --- refusals

    def refused(self, call: Callable[[], object], code: str, reason: str = "") -> Refusal:
        """How `call` is refused, which must be with `code` and, if given, `reason`."""
        found = refusal_of(call)
        expected = f"{code} {reason}".strip()
        told = f"{found.code} {found.reason}".strip()
        require(found.code == code, f"refused with {told} ({found.message}), not {expected}")
        if reason:
            require(found.reason == reason, f"refused with {told or 'no reason'}, not {expected}: are details passed on?")
        return found

    def refused_unchanged(self, name: str, call: Callable[[], object], code: str, reason: str = "") -> Refusal:
        """The same, and the agent is what it was before."""
        before = self.status(name)
        found = self.refused(call, code, reason)
        after = self.status(name)
        same("after a refusal the agent's version", after.version, before.version)
        same("after a refusal the agent's digest", after.state_digest, before.state_digest)
        return found


def refusal_of(call: Callable[[], object]) -> Refusal:
    try:
        reply = call()
    except grpc.RpcError as error:
        return _refusal(error)
    raise FailedError(f"it was accepted: {' '.join(str(reply).split())[:120] or 'an empty reply'}")


def _refusal(error: Any) -> Refusal:
    info, bad, fields = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), []
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # the details belong to another status
        status = None
    for detail in [] if status is None else status.details:
        candidate = error_details_pb2.ErrorInfo()
        if detail.Unpack(candidate) and candidate.domain == DOMAIN:
            info = candidate
        elif detail.Unpack(bad):
            fields += [violation.field for violation in bad.field_violations]
    return Refusal(error.code().name, error.details() or "", info.domain, info.reason, dict(info.metadata), fields)
