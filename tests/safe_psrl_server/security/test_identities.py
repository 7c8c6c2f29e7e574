"""What an identity sees, when it stops being one, and that refusals are counted."""

import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.safe_psrl_server.wire import Code, refusal

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc
from safe_psrl_server.config import ConfigError
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.security.roles import Role
from safe_psrl_server.security.token_file import create_token, revoke_tokens


class As:
    """The stubs, with a token."""

    def __init__(self, channel: grpc.Channel, token: str) -> None:
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self.control = control_pb2_grpc.ControlServiceStub(channel)

    def listed(self, **fields: Any) -> admin_pb2.ListAgentsResponse:
        return self.admin.ListAgents(admin_pb2.ListAgentsRequest(**fields), metadata=self.metadata, timeout=20)


@pytest.fixture
def channel(guarded: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(guarded.target) as channel:
        yield channel


def metric(server: EmbeddedServer, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port or 0, timeout=10)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


@pytest.mark.parametrize(
    ("who", "agents"),
    [("read", ["site/a", "site/b"]), ("admin", ["other/a", "site/a", "site/b"]), ("read elsewhere", ["other/a"])],
)
def test_lists_and_watches_have_only_what_may_be_read(guarded: Any, channel: grpc.Channel, who: str, agents: list[str]) -> None:
    caller = As(channel, guarded.tokens[who])
    assert [status.agent for status in caller.listed().agents] == agents
    watch = caller.admin.WatchAgents(admin_pb2.WatchAgentsRequest(), metadata=caller.metadata, timeout=20)
    assert [status.agent for status in next(watch).agents] == agents
    watch.cancel()
    named = admin_pb2.WatchAgentsRequest(agents=["site/a", "other/a"])
    watch = caller.admin.WatchAgents(named, metadata=caller.metadata, timeout=20)
    assert {status.agent for status in next(watch).agents} == set(agents) & {"site/a", "other/a"}
    watch.cancel()


def test_pages_do_not_name_what_may_not_be_read(guarded: Any, channel: grpc.Channel) -> None:
    page = As(channel, guarded.tokens["read"]).listed(page_size=1)
    assert ([status.agent for status in page.agents], page.next_page_token) == (["site/a"], "site/a")
    page = As(channel, guarded.tokens["read elsewhere"]).listed(page_size=1)
    assert ([status.agent for status in page.agents], page.next_page_token) == (["other/a"], "")


def test_messages_of_one_stream_are_judged_one_by_one(guarded: Any, channel: grpc.Channel) -> None:
    caller = As(channel, guarded.tokens["act"])
    starts = [
        control_pb2.StepStreamRequest(tag=tag, start_episode=control_pb2.StartEpisodeRequest(agent=agent, abandon_open=True))
        for tag, agent in enumerate(["site/a", "other/a", "site/nobody", "other/nobody", "site/a"])
    ]
    replies = list(caller.control.StepStream(iter(starts), metadata=caller.metadata, timeout=20))
    assert [reply.tag for reply in replies] == [0, 1, 2, 3, 4]
    codes = [reply.error.code for reply in replies]
    denied, missing = Code.PERMISSION_DENIED.value[0], Code.NOT_FOUND.value[0]
    assert codes == [0, denied, missing, denied, 0]


def test_calls_of_one_batch_are_judged_one_by_one(guarded: Any, channel: grpc.Channel) -> None:
    """Of every kind: one agent that the caller may not play does not hold up the others, and is not played."""
    caller, operator = As(channel, guarded.tokens["act"]), As(channel, guarded.tokens["admin"])

    def known(agent: str) -> admin_pb2.AgentStatus:
        request = admin_pb2.GetAgentRequest(agent=agent)
        return operator.admin.GetAgent(request, metadata=operator.metadata, timeout=20).status

    calls = []
    for agent in ["site/a", "other/a", "other/nobody"]:
        start = control_pb2.StartEpisodeRequest(agent=agent, abandon_open=True)
        calls += [
            control_pb2.StepStreamRequest(tag=len(calls), start_episode=start),
            control_pb2.StepStreamRequest(tag=len(calls) + 1, step=control_pb2.StepRequest(agent=agent)),
            control_pb2.StepStreamRequest(
                tag=len(calls) + 2, report_episode=control_pb2.ReportEpisodeRequest(agent=agent, episode=10**9)
            ),
        ]
    before = known("other/a"), known("site/a")
    batch = control_pb2.StepStreamRequest(batch=control_pb2.StepStreamBatch(calls=calls))
    (reply,) = caller.control.StepStream(iter([batch]), metadata=caller.metadata, timeout=20)
    assert [one.tag for one in reply.batch.replies] == list(range(9))
    denied, missing, invalid = Code.PERMISSION_DENIED.value[0], Code.NOT_FOUND.value[0], Code.INVALID_ARGUMENT.value[0]
    assert [one.error.code for one in reply.batch.replies] == [0, invalid, missing, *[denied] * 6]
    assert known("other/a").version == before[0].version
    assert known("site/a").version > before[1].version


def test_an_import_under_a_forbidden_name_is_refused_at_its_first_message(guarded: Any, channel: grpc.Channel) -> None:
    """Before the rest has come: the client has not ended its stream yet."""
    caller = As(channel, guarded.tokens["admin elsewhere"])

    def parts() -> Iterator[admin_pb2.ImportAgentRequest]:
        yield admin_pb2.ImportAgentRequest(agent="site/new")
        while True:
            time.sleep(0.01)
            yield admin_pb2.ImportAgentRequest(chunk=b"x")

    refusal(
        lambda: caller.admin.ImportAgent(parts(), metadata=caller.metadata, timeout=20),
        Code.PERMISSION_DENIED,
        "PERMISSION_DENIED",
    )


def test_refused_calls_are_counted(guarded: Any, channel: grpc.Channel) -> None:
    """By the counter of calls and by that of reasons; with reasons that tell a missing credential from a wrong one."""

    def counts() -> list[float]:
        names = [f'safe_psrl_rejections_total{{reason="{reason}"}}' for reason in reasons]
        by_code = [f'grpc_server_handled_total{{grpc_code="{code}",grpc_method="ListAgents"' for code in codes]
        return [metric(guarded.server, name) for name in [*names, *by_code]]

    reasons, codes = ("CREDENTIAL_MISSING", "CREDENTIAL_INVALID", "PERMISSION_DENIED"), ("UNAUTHENTICATED", "PERMISSION_DENIED")
    before = counts()
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    refusal(lambda: stub.ListAgents(admin_pb2.ListAgentsRequest()), reason="CREDENTIAL_MISSING")
    refusal(lambda: As(channel, "spsrl_12345678_x").listed(), reason="CREDENTIAL_INVALID")
    refusal(lambda: As(channel, guarded.tokens["act"]).listed(), reason="PERMISSION_DENIED")
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [1, 1, 1, 2, 1]


def test_a_revoked_token_ends_what_it_began(identities: Any) -> None:
    """A watch and a stream of steps; a new token of the same name works at once or a moment later."""
    file, tokens = identities
    agents = [{"name": "site/a", "preset": "inventory"}]
    settings: dict[str, Any] = {"security": {"identities": file}, "agents": agents}
    with EmbeddedServer(**settings) as server, grpc.insecure_channel(server.target) as channel:
        caller = As(channel, tokens["read"])
        watch = caller.admin.WatchAgents(
            admin_pb2.WatchAgentsRequest(interval_seconds=0.1), metadata=caller.metadata, timeout=30
        )
        assert next(watch).agents
        assert revoke_tokens(file, "read") == 1
        with pytest.raises(grpc.RpcError) as caught:
            list(watch)
        assert caught.value.code() is Code.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            caller.listed()
        assert caught.value.code() is Code.UNAUTHENTICATED
        renewed = As(channel, create_token(file, "read", [Role.READ], ["site/*"]))
        assert _eventually(renewed.listed).agents


def test_a_file_that_became_nonsense_leaves_things_as_they_were(identities: Any) -> None:
    file, tokens = identities
    with EmbeddedServer(security={"identities": file}) as server, grpc.insecure_channel(server.target) as channel:
        text = file.read_text()
        file.write_text(text + "\n[[token")
        until = time.monotonic() + 1.5  # longer than the server waits between looks
        while time.monotonic() < until:
            As(channel, tokens["read"]).listed()
            time.sleep(0.1)
        file.write_text(text)
        other = As(channel, create_token(file, "late", [Role.READ], ["*"]))
        _eventually(other.listed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[token", "security.identities: "),
        ('[[token]]\nname = "a"', "security.identities: token.0."),
        ('[[certificate]]\nname = "a"\nsubject = "a"\nroles = ["root"]\nagents = ["*"]', "certificate.0.roles.0"),
        ("unknown = 1", "unknown"),
    ],
)
def test_a_server_does_not_start_with_identities_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "identities.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught, EmbeddedServer(security={"identities": file}):
        pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_identities_that_everybody_may_change_are_refused(identities: Any) -> None:
    file, _ = identities
    file.chmod(0o666)
    with pytest.raises(ConfigError, match="every user may write"), EmbeddedServer(security={"identities": file}):
        pass


def test_metrics_can_need_a_token_of_somebody_who_reads_everything(identities: Any) -> None:
    file, tokens = identities
    tokens["scraper"] = create_token(file, "scraper", [Role.READ], ["*"])
    settings: dict[str, Any] = {"security": {"identities": file, "open_metrics": False}, "metrics": "127.0.0.1:0"}
    with EmbeddedServer(**settings) as server:
        statuses = {}
        for who in ("nobody", "read", "act", "scraper", "admin"):
            headers = {"Authorization": f"Bearer {tokens[who]}"} if who in tokens else {}
            connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port or 0, timeout=10)
            connection.request("GET", "/metrics", headers=headers)
            statuses[who] = connection.getresponse().status
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
    assert statuses == {"nobody": 401, "read": 401, "act": 401, "scraper": 200, "admin": 200}


def test_reflection_can_be_open(identities: Any) -> None:
    file, _ = identities
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with (
        EmbeddedServer(security={"identities": file, "open_reflection": True}) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        replies = channel.stream_stream(path)(iter([b"\x3a\x01*"]), timeout=20)
        assert b"safe_psrl.v1.AdminService" in next(replies)
        replies.cancel()


def _eventually(call: Callable[[], Any], seconds: float = 20.0) -> Any:
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except grpc.RpcError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
