"""What an identity sees, when it stops being one, and that refusals are counted."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.safe_psrl_server.metrics.scrapes import get, page
from tests.safe_psrl_server.wire import Code, Wire, eventually, refusal

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.config import ConfigError
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.security.identities import create_token, revoke_tokens
from safe_psrl_server.security.roles import Role

NewCaller = Callable[[str], Wire]


@pytest.fixture
def caller(guarded: Any) -> Iterator[NewCaller]:
    """`caller(name)`: a client with the token of that name."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Wire(guarded.target, token=guarded.tokens.get(name, name)))


def metric(server: EmbeddedServer, name: str) -> float:
    _, text = page(server.metrics_port, "/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize(
    ("who", "agents"),
    [("read", ["site/a", "site/b"]), ("admin", ["other/a", "site/a", "site/b"]), ("read elsewhere", ["other/a"])],
)
def test_lists_and_watches_have_only_what_may_be_read(caller: NewCaller, who: str, agents: list[str]) -> None:
    wire = caller(who)
    assert [status.agent for status in wire.list().agents] == agents
    named = ["site/a", "other/a"]
    for asked, expected in (([], agents), (named, [agent for agent in agents if agent in named])):
        watch = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(agents=asked), timeout=20)
        assert {status.agent for status in next(watch).agents} == set(expected)
        watch.cancel()


@pytest.mark.parametrize(("who", "agent", "token"), [("read", "site/a", "site/a"), ("read elsewhere", "other/a", "")])
def test_pages_do_not_name_what_may_not_be_read(caller: NewCaller, who: str, agent: str, token: str) -> None:
    page = caller(who).list(page_size=1)
    assert ([status.agent for status in page.agents], page.next_page_token) == ([agent], token)


def test_messages_of_one_stream_are_judged_one_by_one(caller: NewCaller) -> None:
    starts = [
        control_pb2.StepStreamRequest(tag=tag, start_episode=control_pb2.StartEpisodeRequest(agent=agent, abandon_open=True))
        for tag, agent in enumerate(["site/a", "other/a", "site/nobody", "other/nobody", "site/a"])
    ]
    replies = list(caller("act").control.StepStream(iter(starts), timeout=20))
    assert [reply.tag for reply in replies] == [0, 1, 2, 3, 4]
    codes = [reply.error.code for reply in replies]
    denied, missing = Code.PERMISSION_DENIED.value[0], Code.NOT_FOUND.value[0]
    assert codes == [0, denied, missing, denied, 0]


def test_calls_of_one_batch_are_judged_one_by_one(caller: NewCaller) -> None:
    """Of every kind: one agent that the caller may not play does not hold up the others, and is not played."""
    known, calls = caller("admin").status, []
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
    (reply,) = caller("act").control.StepStream(iter([batch]), timeout=20)
    assert [one.tag for one in reply.batch.replies] == list(range(9))
    denied, missing, invalid = Code.PERMISSION_DENIED.value[0], Code.NOT_FOUND.value[0], Code.INVALID_ARGUMENT.value[0]
    assert [one.error.code for one in reply.batch.replies] == [0, invalid, missing, *[denied] * 6]
    assert known("other/a").version == before[0].version
    assert known("site/a").version > before[1].version


def test_an_import_under_a_forbidden_name_is_refused_at_its_first_message(caller: NewCaller) -> None:
    """Before the rest has come: the client has not ended its stream yet."""

    def parts() -> Iterator[admin_pb2.ImportAgentRequest]:
        yield admin_pb2.ImportAgentRequest(agent="site/new")
        while True:
            time.sleep(0.01)
            yield admin_pb2.ImportAgentRequest(chunk=b"x")

    wire = caller("admin elsewhere")
    refusal(lambda: wire.admin.ImportAgent(parts(), timeout=20), Code.PERMISSION_DENIED, "PERMISSION_DENIED")


def test_refused_calls_are_counted(guarded: Any, caller: NewCaller) -> None:
    """By the counter of calls and by that of reasons; with reasons that tell a missing credential from a wrong one."""

    def counts() -> list[float]:
        names = [f'safe_psrl_rejections_total{{reason="{reason}"}}' for reason in reasons]
        by_code = [f'grpc_server_handled_total{{grpc_code="{code}",grpc_method="ListAgents"' for code in codes]
        return [metric(guarded.server, name) for name in [*names, *by_code]]

    reasons, codes = ("CREDENTIAL_MISSING", "CREDENTIAL_INVALID", "PERMISSION_DENIED"), ("UNAUTHENTICATED", "PERMISSION_DENIED")
    before = counts()
    refusal(caller("").list, reason="CREDENTIAL_MISSING")
    refusal(caller("spsrl_12345678_x").list, reason="CREDENTIAL_INVALID")
    refusal(caller("act").list, reason="PERMISSION_DENIED")
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [1, 1, 1, 2, 1]


def test_a_revoked_token_ends_what_it_began(identities: Any) -> None:
    """A watch and a stream of steps; a new token of the same name works at once or a moment later."""
    file, tokens = identities
    agents = [{"name": "site/a", "preset": "inventory"}]
    settings: dict[str, Any] = {"security": {"identities": file}, "agents": agents}
    with EmbeddedServer(**settings) as server, Wire(server.target, token=tokens["read"]) as wire:
        watch = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(interval_seconds=0.1), timeout=30)
        assert next(watch).agents
        assert revoke_tokens(file, "read") == 1
        for call in (lambda: list(watch), wire.list):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is Code.UNAUTHENTICATED
        with Wire(server.target, token=create_token(file, "read", [Role.READ], ["site/*"])) as renewed:
            assert eventually(renewed.list).agents


def test_a_file_that_became_nonsense_leaves_things_as_they_were(identities: Any) -> None:
    file, tokens = identities
    with EmbeddedServer(security={"identities": file}) as server, Wire(server.target, token=tokens["read"]) as wire:
        text = file.read_text()
        file.write_text(text + "\n[[token")
        until = time.monotonic() + 1.5  # longer than the server waits between looks
        while time.monotonic() < until:
            wire.list()
            time.sleep(0.1)
        file.write_text(text)
        with Wire(server.target, token=create_token(file, "late", [Role.READ], ["*"])) as other:
            eventually(other.list)


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
            statuses[who] = get(server.metrics_port, "/metrics", **headers)[0].status
            assert page(server.metrics_port, "/healthz")[0] == 200
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
