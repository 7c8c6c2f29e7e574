"""Every call of the contract, by everybody: who gets which code. The calls come from the descriptors, so none is forgotten."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import descriptor, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.security.roles import RULES

Code = grpc.StatusCode
METHODS: dict[str, descriptor.MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in (control_pb2, admin_pb2, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Case(NamedTuple):
    """A request about site/a, what it is answered with if it is let in, and who is."""

    fields: dict[str, Any]
    code: Code
    allowed: frozenset[str]


ACT, READ, ADMIN = (frozenset(words) for words in (["act", "admin"], ["read", "admin"], ["admin"]))
LISTING = READ | {"read elsewhere", "admin elsewhere"}
IDENTIFIED = frozenset(["act", "read", "admin", "act elsewhere", "read elsewhere", "admin elsewhere"])
ALL = IDENTIFIED | {"nobody", "wrong token"}
AGENT = {"agent": "site/a"}
CASES = {
    "StartEpisode": Case({**AGENT, "state": 0, "abandon_open": True}, Code.OK, ACT),
    "GetAction": Case({**AGENT, "state": 0}, Code.OK, ACT),
    "ReportTransition": Case(AGENT, Code.INVALID_ARGUMENT, ACT),
    "Step": Case(AGENT, Code.INVALID_ARGUMENT, ACT),
    "StepStream": Case({"step": AGENT}, Code.INVALID_ARGUMENT, ACT),
    "ReportEpisode": Case({**AGENT, "episode": 10**9}, Code.NOT_FOUND, ACT),
    "CorrectSignal": Case({**AGENT, "episode": 10**9}, Code.NOT_FOUND, ACT),
    "EndEpisode": Case({**AGENT, "episode": 10**9}, Code.NOT_FOUND, ACT),
    "CreateAgent": Case({**AGENT, "preset": "inventory"}, Code.OK, ADMIN),
    "GetAgent": Case(AGENT, Code.OK, READ),
    "ListAgents": Case({}, Code.OK, LISTING),
    "DeleteAgent": Case({"agent": "site/missing"}, Code.NOT_FOUND, ADMIN),
    "PauseAgent": Case({"agent": "site/b"}, Code.OK, ADMIN),
    "ResumeAgent": Case({"agent": "site/b"}, Code.OK, ADMIN),
    "UpdateAgent": Case(AGENT, Code.INVALID_ARGUMENT, ADMIN),
    "ListEvents": Case(AGENT, Code.OK, READ),
    "GetHistory": Case(AGENT, Code.OK, READ),
    "GetPolicy": Case({**AGENT, "episode": 10**9}, Code.NOT_FOUND, READ),
    "ExplainAction": Case(AGENT, Code.OK, READ),
    "CompareAgent": Case(AGENT, Code.OK, READ),
    "GetPosterior": Case(AGENT, Code.OK, READ),
    "WatchAgents": Case({}, Code.OK, LISTING),
    "ExportAgent": Case(AGENT, Code.OK, READ),
    "ExportTransitions": Case(AGENT, Code.OK, READ),
    "ImportAgent": Case({"agent": "site/new", "digest": b"x"}, Code.INVALID_ARGUMENT, ADMIN),
    "VerifyAgent": Case(AGENT, Code.OK, READ),
    "Check": Case({}, Code.OK, ALL),
    "List": Case({}, Code.UNIMPLEMENTED, ALL),
    "Watch": Case({}, Code.OK, ALL),
    "ServerReflectionInfo": Case({"list_services": "*"}, Code.OK, IDENTIFIED),
}


@pytest.fixture(scope="module")
def channel(guarded: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(guarded.target) as channel:
        yield channel


def code_of(channel: grpc.Channel, path: str, fields: dict[str, Any], token: str | None) -> Code:
    """The code that a call is answered with; of a stream whose messages have statuses of their own, the first message's."""
    method = METHODS[path]
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    request = message_factory.GetMessageClass(method.input_type)(**fields)
    reply_type = message_factory.GetMessageClass(method.output_type)
    callable_ = getattr(channel, kind)(path, type(request).SerializeToString, reply_type.FromString)
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    try:
        reply = callable_(iter([request]) if method.client_streaming else request, metadata=metadata, timeout=20)
        if method.server_streaming:
            call, reply = reply, next(reply)
            call.cancel()
    except grpc.RpcError as error:
        return error.code()
    if isinstance(reply, control_pb2.StepStreamResponse) and reply.HasField("error"):
        return next(code for code in Code if code.value[0] == reply.error.code)
    return Code.OK


@pytest.mark.parametrize("who", sorted(ALL))
@pytest.mark.parametrize("path", sorted(METHODS))
def test_every_call_by_everybody_has_its_code(guarded: Any, channel: grpc.Channel, path: str, who: str) -> None:
    case = CASES[path.rpartition("/")[2]]
    wrong = guarded.tokens["admin"][:-1] + ("A" if guarded.tokens["admin"][-1] != "A" else "B")
    token = {"nobody": None, "wrong token": wrong}.get(who, guarded.tokens.get(who))
    expected = case.code if who in case.allowed else Code.PERMISSION_DENIED if who in IDENTIFIED else Code.UNAUTHENTICATED
    assert code_of(channel, path, case.fields, token) is expected


def test_the_table_of_rules_has_exactly_the_calls_of_the_contract() -> None:
    assert set(RULES) == set(METHODS)


def test_a_call_without_a_rule_is_refused_to_everybody(monkeypatch: pytest.MonkeyPatch, identities: Any) -> None:
    """As one that was added to the contract and forgotten here."""
    file, tokens = identities
    path = "/safe_psrl.v1.AdminService/ListAgents"
    monkeypatch.delitem(RULES, path)  # type: ignore[arg-type]  # a dictionary, though nobody is meant to change it
    with EmbeddedServer(security={"identities": file}) as server, grpc.insecure_channel(server.target) as channel:
        assert code_of(channel, path, {}, tokens["admin"]) is Code.PERMISSION_DENIED


@pytest.mark.parametrize("path", sorted(path for path in METHODS if "agent" in METHODS[path].input_type.fields_by_name))
def test_a_refusal_does_not_tell_whether_the_agent_exists(guarded: Any, channel: grpc.Channel, path: str) -> None:
    fields = CASES[path.rpartition("/")[2]].fields
    token = guarded.tokens["admin elsewhere"]
    codes = {code_of(channel, path, {**fields, "agent": agent}, token) for agent in ("site/a", "site/nobody", "")}
    assert codes == {Code.PERMISSION_DENIED}


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "spsrl_00000000_x", "Bearer spsrl_00000000_x", "Bearer " + "x" * 4000]
)
def test_anything_but_a_token_of_ours_is_not_a_credential(channel: grpc.Channel, header: str) -> None:
    call = channel.unary_unary("/safe_psrl.v1.AdminService/ListAgents")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", metadata=(("authorization", header),), timeout=20)
    assert caught.value.code() is Code.UNAUTHENTICATED


def test_two_credentials_are_none(guarded: Any, channel: grpc.Channel) -> None:
    """A proxy may look at one and the server at the other."""
    call = channel.unary_unary("/safe_psrl.v1.AdminService/ListAgents")
    header = ("authorization", f"Bearer {guarded.tokens['admin']}")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", metadata=(header, header), timeout=20)
    assert caught.value.code() is Code.UNAUTHENTICATED


@pytest.mark.parametrize(("token", "code"), [(None, Code.UNAUTHENTICATED), ("admin", Code.INVALID_ARGUMENT)])
def test_credentials_are_checked_before_a_body_is_parsed(guarded: Any, token: str | None, code: Code) -> None:
    """A body that cannot be parsed is reported only to callers who may be heard."""
    metadata = [("authorization", f"Bearer {guarded.tokens[token]}")] if token else []
    with grpc.insecure_channel(guarded.target) as channel:
        call = channel.unary_unary("/safe_psrl.v1.ControlService/ReportEpisode")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff\xff\xff", metadata=metadata, timeout=20)
    assert caught.value.code() == code


def test_the_log_names_who_did_it(identities: Any) -> None:
    """The identity of the caller, with the reason that was given."""
    file, tokens = identities
    agent = {"name": "site/a", "preset": "inventory"}
    with (
        EmbeddedServer(security={"identities": file}, agents=[agent]) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        admin, metadata = admin_pb2_grpc.AdminServiceStub(channel), (("authorization", f"Bearer {tokens['admin']}"),)
        request = admin_pb2.UpdateAgentRequest(agent="site/a", update={"drift": {"on_detect": "forget"}}, reason="unattended")
        request.update_mask.paths.append("drift.on_detect")
        admin.UpdateAgent(request, metadata=metadata)
        updated, created = admin.ListEvents(admin_pb2.ListEventsRequest(agent="site/a"), metadata=metadata).entries
    assert (updated.by, updated.reason) == ("admin", "unattended")
    assert created.by == ""  # the server itself
