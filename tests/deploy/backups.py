"""What the tests of backups share: load on a server, and the commands of docs/backup.md as an operator types them."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from safe_psrl_proto.v1 import admin_pb2
from tests.system.server_process import SCRIPT, ServerProcess, wait_until

PAGE: Final = Path(__file__).parents[2] / "docs" / "backup.md"
USUAL_TARGET: Final = "127.0.0.1:50551"
AGENTS: Final = 4
KEEP_EVENTS: Final = "[snapshots]\nevery_events = 1000000\nevery_seconds = 1000000.0\n"  # so that streams can be compared
ENOUGH: Final = 40  # transitions of each agent
Row = tuple[str, int, bytes, bytes]  # agent, version, payload, link


@contextmanager
def load_on(server: ServerProcess) -> Iterator[None]:
    """Agents that play until the end of the block."""
    play = ["simulate", "streaming-buffer", "--agent", "load", "--create", "--parallel", str(AGENTS), "--episodes", "1000000"]
    simulator = subprocess.Popen(
        [*SCRIPT, *play, "--target", server.target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        simulator.kill()
        simulator.wait()


def documented(name: str) -> str:
    """The commands of the block that begins with `# name`."""
    found = re.findall(rf"^```sh\n# {name}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(found) == 1, name
    return str(found[0])


def type_in(commands: str, directory: Path, environment: Mapping[str, str] | None = None, *, programs: str = "") -> str:
    """What they print; AssertionError if one fails."""
    path = f"{Path(sys.executable).parent}:{programs}:/usr/bin:/bin"
    ended = subprocess.run(
        ["/bin/sh", "-e", "-c", commands],
        cwd=directory,
        env={"PATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def verify(server: ServerProcess, directory: Path) -> None:
    """As documented, of all agents."""
    commands = documented("verify")
    assert USUAL_TARGET in commands
    assert type_in(commands.replace(USUAL_TARGET, server.target), directory).count("as stored") == AGENTS


def transitions(server: ServerProcess) -> dict[str, int]:
    """By the agents themselves: after a crash, listings on PostgreSQL are brought up to date in the background."""
    names = [status.agent for status in server.admin.ListAgents(admin_pb2.ListAgentsRequest(), timeout=30).agents]
    requests = [admin_pb2.GetAgentRequest(agent=name) for name in names]
    return {request.agent: server.admin.GetAgent(request, timeout=30).status.transitions for request in requests}


def wait_for_more(server: ServerProcess, than: Mapping[str, int]) -> dict[str, int]:
    """The transitions, once every agent has played on."""

    def played() -> dict[str, int] | None:
        now = transitions(server)
        enough = len(now) == AGENTS and all(count >= than.get(agent, 0) + ENOUGH for agent, count in now.items())
        return now if enough else None

    return wait_until(played, 120.0, "every agent played on") or {}


def check_prefix(rows: list[Row], all_rows: list[Row]) -> None:
    """`rows` are the beginning of each agent's events, and not all of them."""
    heads = {agent: version for agent, version, _, _ in rows}
    assert len(heads) == AGENTS
    assert rows == [row for row in all_rows if row[1] <= heads[row[0]]]
    assert len(rows) < len(all_rows)
