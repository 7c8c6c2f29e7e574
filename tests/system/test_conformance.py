"""The conformance kit passes a correct server and fails an incorrect one."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_conformance import CHECKS, Wire, run, selected
from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.agents import commands, decisions
from safe_psrl_server.embedded import EmbeddedServer
from tests.system import careless_proxy
from tests.system.careless_proxy import Proxy
from tests.system.front import Front
from tests.system.server_process import SCRIPT, NewServer, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


def failures(target: str, *chapters: str, timeout: float = 10.0) -> set[str]:
    with Wire(target, timeout=timeout) as wire:
        return {f"{check.chapter}.{check.name}" for check, result, _ in run(wire, selected(chapters)) if result == "FAIL"}


def test_a_server_passes_and_so_does_the_shipped_front(started_server: NewServer, tmp_path: Path) -> None:
    """All of it by the command, directly and through Envoy; nothing is skipped, and nothing is left behind."""
    server = started_server()
    front = Front(tmp_path / "front", [server.target])
    try:
        front.start()
        for target in (server.target, front.target):
            file = tmp_path / "verdicts.json"
            command = [*SCRIPT, "conformance", "--target", target, "--json", str(file)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            told = json.loads(file.read_text(encoding="utf-8"))
            assert told["passed"]
            assert [result["verdict"] for result in told["results"]] == ["pass"] * len(CHECKS)
    finally:
        front.close()
    assert list(server.admin.ListAgents(admin_pb2.ListAgentsRequest()).agents) == []


def test_an_honest_proxy_passes(server: EmbeddedServer) -> None:
    """So that what fails below is the carelessness alone."""
    with Proxy(server.target) as proxy:
        assert failures(proxy.target) == set()


@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        ("SendsTwice", {"ordering.keyless-once", "ordering.numbering"}),
        ("DropsDetails", {"ordering.gap", "idempotency.report-conflict", "errors.details", "errors.fields-are-named"}),
        ("HidesCodes", {"ordering.gap", "errors.details", "transport.unknown-method", "transport.health"}),
        ("ForgetsErrors", {"errors.fields-are-named", "transport.malformed", "transport.malformed-stream"}),
        ("ReordersReplies", {"streams.order-and-tags", "streams.errors-are-single", "streams.batch-in-order"}),
        ("BuffersStreams", {"streams.replies-at-once"}),
        ("Caches", {"ordering.keyless-once", "idempotency.report-repeated"}),
        ("ReversesBatches", {"streams.batch-in-order"}),
        ("RefusesWholeBatches", {"streams.batch-errors-are-single"}),
        ("LosesReplies", {"streams.order-and-tags", "streams.batch-in-order", "streams.whole-episodes"}),
    ],
)
def test_a_faulty_proxy_fails(server: EmbeddedServer, kind: str, noticed: set[str]) -> None:
    chapters = {name.partition(".")[0] for name in noticed}
    with getattr(careless_proxy, kind)(server.target) as proxy:
        found = failures(proxy.target, *chapters, timeout=2.0)
    assert noticed <= found


def nothing(*_arguments: object, **_named: object) -> None:
    return None


def reports_alone(commands: Any, request: control_pb2.ReportEpisodeRequest) -> Any:
    alone = control_pb2.ReportEpisodeRequest(agent=request.agent, episode=request.episode, transitions=request.transitions)
    return HONEST_REPORT(commands, alone)


def tells_of_no_end(*arguments: Any, **options: Any) -> Any:
    decision = HONEST_STEP(*arguments, **options)
    return decision._replace(reply=decision.reply._replace(is_last=False))


def tells_of_the_horizon_alone(*arguments: Any, **options: Any) -> Any:
    decision = HONEST_STEP(*arguments, **options)
    reported = decision.reply
    return decision._replace(reply=reported._replace(is_last=reported.step == len(reported.episode.policy) - 1))


HONEST_STEP = decisions.report
HONEST_REPORT = commands.AgentCommands.report_episode


@pytest.mark.parametrize(
    ("where", "instead", "noticed"),
    [
        ("agents.decisions.check_no_gap", nothing, "ordering.gap"),
        ("agents.decisions.check_continuity", nothing, "ordering.continuity"),
        ("agents.decisions.check_repetition", nothing, "idempotency.report-conflict"),
        ("agents.decisions.repeated_start", nothing, "idempotency.start-repeated"),
        ("agents.decisions.check_may_act", nothing, "pausing.reports-while-paused"),
        ("agents.decisions.check_first_state", nothing, "idempotency.trajectory-all-or-none"),
        ("agents.decisions.report", tells_of_no_end, "episodes.last-step-completes"),
        ("agents.decisions.report", tells_of_the_horizon_alone, "episodes.terminal-completes"),
        ("agents.administration.check_definition_version", nothing, "updating.refused-updates"),
        ("agents.decisions.is_advisory", lambda _record, _episode: False, "shadow.advisory"),
        ("agents.administration.check_promotion", nothing, "shadow.promotion"),
        ("rpc.errors.metadata_of", lambda _: {}, "errors.details"),
        ("rpc.errors.MAX_TEXT_BYTES", 10**6, "errors.long-nonsense"),
        ("rpc.middleware.parsed", lambda parse, data: parse(data), "transport.malformed"),
        ("agents.commands.AgentCommands.report_episode", reports_alone, "streams.whole-episodes"),
        ("agents.record.AgentRecord.state_after", lambda record, _trajectory: record.state, "episodes.report-and-begin"),
    ],
)
def test_a_faulty_server_fails(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, where: str, instead: object, noticed: str
) -> None:
    monkeypatch.setattr(f"safe_psrl_server.{where}", instead)
    assert noticed in failures(server.target, noticed.partition(".")[0], timeout=2.0)


def test_no_agents_are_left_behind_by_ctrl_c(server: EmbeddedServer) -> None:
    """In the middle of a check that has an agent: the watch, which takes half a second. The check is ended first."""
    command = [*SCRIPT, "conformance", "--target", server.target, "--only", "deadlines"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("pass    deadlines.")
        with Wire(server.target) as wire:
            wait_until(lambda: wire.call(wire.admin.ListAgents, admin_pb2.ListAgentsRequest()).agents, 10, "an agent is there")
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[1] == "safe-psrl: stopped\n"
            assert process.returncode == 130
            assert list(wire.call(wire.admin.ListAgents, admin_pb2.ListAgentsRequest()).agents) == []
