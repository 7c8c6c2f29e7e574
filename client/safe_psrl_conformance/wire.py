"""Calls without the client library: generated stubs on a channel that retries nothing, and the agents that checks use."""

import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Any, Final, Self, TypeVar

import grpc

from safe_psrl_client.channel import MAX_MESSAGE_BYTES, call_metadata, open_channel, token_metadata
from safe_psrl_client.errors import SafePsrlClientError, error_of_call
from safe_psrl_client.sync.retry import FirstContact, retry
from safe_psrl_client.sync.stream import StepStream
from safe_psrl_conformance.check import FailedError, require, same
from safe_psrl_conformance.problem import agent_spec
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, model_pb2

T = TypeVar("T")

OPTIONS: Final = [
    ("grpc.enable_retries", 0),  # failures must be visible
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]


class Wire:
    """A channel to `target`, and the agents created over it. Their names begin with `prefix`."""

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        timeout: float = 10.0,
        prefix: str = "conformance-",
    ) -> None:
        self.target = target
        self._identity = token_metadata(token, target, credentials)
        self.channel = open_channel(target, credentials, OPTIONS)
        self.timeout = timeout
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.prefix = f"{prefix}{uuid.uuid4().hex[:12]}"
        self._numbers = count()
        self._made: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.tidy()
        finally:
            self.channel.close()

    def tidy(self) -> None:
        """Delete every agent that may have been created."""
        for name in reversed(self._made):
            with suppress(grpc.RpcError):
                self.call(self.admin.DeleteAgent, admin_pb2.DeleteAgentRequest(agent=name))
        self._made.clear()

    def wait(self, seconds: float) -> None:
        """Wait for a service that is starting. Raises the client library's error."""
        request = admin_pb2.ListAgentsRequest(page_size=1)
        retry(lambda: self.call(self.admin.ListAgents, request), seconds, FirstContact(self.target, seconds))

    def probe(self) -> None:
        """Raise the client library's error if the service does not allow creating agents."""
        retry(self.create, 0.0, FirstContact(self.target, 0.0))
        self.tidy()

    # --- calling

    def options(self, agent: str, timeout: float | None = None) -> dict[str, Any]:
        """The deadline and metadata of a call."""
        return {"timeout": timeout or self.timeout, "metadata": self._identity + call_metadata(agent)}

    def call(self, method: Callable[..., T], request: Any, timeout: float | None = None) -> T:
        return method(request, **self.options(getattr(request, "agent", ""), timeout))

    def raw(self, method: str, request: bytes, agent: str = "") -> bytes:
        """A call by its name, with bytes for request and reply."""
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(method, None, None)
        return call(request, **self.options(agent))

    def raw_stream(self, method: str, requests: Iterable[bytes]) -> list[bytes]:
        """`raw` for a bidirectional stream, half-closed after the last request."""
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
        """A name whose agent is deleted at the end, if there is one."""
        name = f"{self.prefix}-{next(self._numbers)}"
        self._made.append(name)
        return name

    def create(self, name: str = "", spec: model_pb2.AgentSpec | None = None) -> str:
        name = name or self.new_name()
        self.call(self.admin.CreateAgent, admin_pb2.CreateAgentRequest(agent=name, spec=spec or agent_spec()))
        return name

    def create_started(self) -> str:
        """An agent whose episode 1 is open, begun with the request_id "a"."""
        name = self.create()
        self.start(name, request_id="a")
        return name

    def status(self, name: str) -> admin_pb2.AgentStatus:
        return self.call(self.admin.GetAgent, admin_pb2.GetAgentRequest(agent=name)).status

    # --- the data plane

    def start(self, name: str, timeout: float | None = None, **fields: Any) -> control_pb2.StartEpisodeResponse:
        return self.call(self.control.StartEpisode, control_pb2.StartEpisodeRequest(agent=name, **fields), timeout)

    def act(self, name: str, state: int, **fields: Any) -> control_pb2.GetActionResponse:
        return self.call(self.control.GetAction, control_pb2.GetActionRequest(agent=name, state=state, **fields))

    def report(self, name: str, seen: control_pb2.Transition, **fields: Any) -> control_pb2.ReportTransitionResponse:
        request = control_pb2.ReportTransitionRequest(agent=name, transition=seen, **fields)
        return self.call(self.control.ReportTransition, request)

    def step(self, name: str, seen: control_pb2.Transition, **fields: Any) -> control_pb2.StepResponse:
        return self.call(self.control.Step, control_pb2.StepRequest(agent=name, transition=seen, **fields))

    def report_episode(
        self, name: str, episode: int, seen: Iterable[control_pb2.Transition], **fields: Any
    ) -> control_pb2.ReportEpisodeResponse:
        request = control_pb2.ReportEpisodeRequest(agent=name, episode=episode, transitions=seen, **fields)
        return self.call(self.control.ReportEpisode, request)

    def end(self, name: str, episode: int, end: Any = 0) -> control_pb2.EndEpisodeResponse:
        return self.call(self.control.EndEpisode, control_pb2.EndEpisodeRequest(agent=name, episode=episode, end=end))

    # --- errors

    def refused(self, expected: str, call: Callable[..., object], *arguments: Any, **fields: Any) -> SafePsrlClientError:
        """The error of `call`, which must fail with the code and, if given, the reason that are `expected`."""
        code, _, reason = expected.partition(" ")
        try:
            reply = call(*arguments, **fields)
        except grpc.RpcError as error:
            found, found_code = error_of_call(error), error.code().name
        else:
            raise FailedError(f"it was accepted: {' '.join(str(reply).split())[:120] or 'an empty reply'}")
        status = f"{found_code} {found.reason}".strip()
        require(found_code == code, f"rejected with {status} ({found}), not {expected}")
        if reason:
            require(found.reason == reason, f"rejected with {status}, not {expected}: are details forwarded?")
        return found

    def refused_unchanged(
        self, name: str, expected: str, call: Callable[..., object], *arguments: Any, **fields: Any
    ) -> SafePsrlClientError:
        """`refused`, and the agent must not have changed."""
        before = self.status(name)
        found = self.refused(expected, call, *arguments, **fields)
        after = self.status(name)
        same("after an error the agent's version", after.version, before.version)
        same("after an error the agent's digest", after.state_digest, before.state_digest)
        return found
