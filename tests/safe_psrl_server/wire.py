"""A client with nothing but the generated stubs, and how its calls are refused."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, Self, TypeVar

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, model_pb2
from safe_psrl_server.embedded import EmbeddedServer
from tests.safe_psrl_server.specs import make_spec

Code = grpc.StatusCode
T = TypeVar("T")
names = count()


def eventually(call: Callable[[], T], seconds: float = 20.0) -> T:
    """The reply of `call`, which is repeated while it is refused."""
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except grpc.RpcError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)


class Refusal(NamedTuple):
    """A call that was answered with a status."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]
    fields: list[str]
    retry_seconds: float | None


def refusal(call: Callable[[], object], code: Code | None = None, reason: str = "", field: str = "") -> Refusal:
    """How `call` is refused, with its details decoded as any client in Python would. Checks what is given."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value)
    assert status is not None, f"no details: {caught.value}"
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "safe_psrl"
    fields = [violation.field for detail in status.details if detail.Unpack(bad) for violation in bad.field_violations]
    waits = [retry.retry_delay.ToTimedelta().total_seconds() for detail in status.details if detail.Unpack(retry)]
    found = Refusal(caught.value.code(), status.message, info.reason, dict(info.metadata), fields, *(waits or [None]))
    assert found.code == (code or found.code)
    assert found.reason == (reason or found.reason)
    assert found.fields == ([field] if field else found.fields)
    return found


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):  # type: ignore[misc]  # untyped there
    """Sends a token with every call."""

    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), request)

    intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = intercept_unary_unary


class Wire:
    """A context manager; `control` and `admin` are the stubs."""

    def __init__(self, target: str, metrics_port: int | None = None, token: str = "") -> None:
        self.target, self.metrics_port = target, metrics_port
        self.channel = grpc.insecure_channel(target)
        channel = grpc.intercept_channel(self.channel, *([_Bearer(token)] if token else []))
        self.control = control_pb2_grpc.ControlServiceStub(channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.channel.close()

    def create(self, spec: model_pb2.AgentSpec | None = None, name: str | None = None) -> str:
        """A new agent's name."""
        name = name or f"agent-{next(names)}"
        self.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=name, spec=spec or make_spec()))
        return name

    def delete(self, name: str) -> None:
        self.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent=name))

    def status(self, name: str) -> admin_pb2.AgentStatus:
        return self.admin.GetAgent(admin_pb2.GetAgentRequest(agent=name)).status

    def list(self, **fields: Any) -> admin_pb2.ListAgentsResponse:
        return self.admin.ListAgents(admin_pb2.ListAgentsRequest(**fields))

    def pause(self, name: str, reason: str = "") -> admin_pb2.AgentStatus:
        return self.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent=name, reason=reason)).status

    def resume(self, name: str, reason: str = "") -> admin_pb2.AgentStatus:
        return self.admin.ResumeAgent(admin_pb2.ResumeAgentRequest(agent=name, reason=reason)).status

    def verify(self, name: str) -> admin_pb2.VerifyAgentResponse:
        return self.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=name))

    def start(self, name: str, state: int | None = 0, **fields: Any) -> control_pb2.StartEpisodeResponse:
        return self.control.StartEpisode(control_pb2.StartEpisodeRequest(agent=name, state=state, **fields))

    def act(self, name: str, state: int, **fields: Any) -> control_pb2.GetActionResponse:
        return self.control.GetAction(control_pb2.GetActionRequest(agent=name, state=state, **fields))

    def report(self, name: str, moved: control_pb2.Transition, **fields: Any) -> control_pb2.ReportTransitionResponse:
        request = control_pb2.ReportTransitionRequest(agent=name, transition=moved, **fields)
        return self.control.ReportTransition(request)

    def step(self, name: str, moved: control_pb2.Transition, **fields: Any) -> control_pb2.StepResponse:
        return self.control.Step(control_pb2.StepRequest(agent=name, transition=moved, **fields))

    def end(self, name: str, episode: int, end: int = 0) -> control_pb2.EndEpisodeResponse:
        return self.control.EndEpisode(control_pb2.EndEpisodeRequest(agent=name, episode=episode, end=end))

    def report_episode(
        self, name: str, episode: int, *path: control_pb2.Transition, **fields: Any
    ) -> control_pb2.ReportEpisodeResponse:
        request = control_pb2.ReportEpisodeRequest(agent=name, episode=episode, transitions=path, **fields)
        return self.control.ReportEpisode(request)

    @contextmanager
    def unchanged(self, name: str) -> Iterator[None]:
        """Checks that the block adds no event and teaches the agent nothing."""
        before = self.status(name)
        yield
        after = self.status(name)
        assert (after.version, after.state_digest) == (before.version, before.state_digest)


@contextmanager
def serving(token: str = "", **settings: Any) -> Iterator[Wire]:
    """A client of a server in this process."""
    with EmbeddedServer(**settings) as server, Wire(server.target, server.metrics_port, token) as wire:
        yield wire


def without_incarnation(reply: Any) -> Any:
    """What two agents with the same experience reply alike."""
    reply.ClearField("incarnation")
    return reply
