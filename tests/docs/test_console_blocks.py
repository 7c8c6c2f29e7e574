"""Commands that take minutes at full size stand in `console` blocks. Here they run in order, page by page, at a small size."""

import importlib.util
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from safe_psrl_client import Client, Transition
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import scenario_named
from tests.docs.markdown import ROOT, pages
from tests.safe_psrl_server.agents.test_shadow import choice
from tests.safe_psrl_server.security.conftest import Authority
from tests.test_readme import BIN, blocks

pytestmark = pytest.mark.slow

SMALL = [  # what is long, and what it is replaced by
    (r"--kernels \d+|calibrate$", "calibrate --kernels 2 --episodes 20 --confidences 0.95 --jobs 1"),
    (r"lte-cell(.*)--episodes \d+", r"lte-cell\1--episodes 4"),
    (r"lte-cell(.*)@\d+", r"lte-cell\1@2"),
    (r"base-stations --cells 20 --devices 300 --episodes 30", "base-stations --cells 2 --devices 6 --episodes 2"),
    (r"--episodes \d{3,}", "--episodes 40"),
    (r"--steps \d+", "--steps 300"),
    (r"--seeds \d+", "--seeds 1"),
    (r"@\d{3,}", "@20"),
    (r"warm_start.episodes=\d+", "warm_start.episodes=20"),
]
NOT_HERE = ("make lte", "safe-psrl serve", "safe-psrl bench")  # installs ns-3; runs already; have tests of their own


def commands_of(page: Path) -> list[str]:
    shown = "".join(blocks("console", page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    return [line.split(" #")[0].rstrip() for line in shown.splitlines() if line.strip()]


def shortened(command: str) -> str:
    for long, short in SMALL:
        command = re.sub(long, short, command)
    return re.sub(r" +", " ", command)


def needs_what_is_absent(command: str) -> bool:
    return command.startswith(NOT_HERE) or ("lte-cell" in command and importlib.util.find_spec("ns3") is None)


def finished(command: str, directory: Path, **variables: str) -> str:
    """Standard output of a command, which must succeed."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    ended = subprocess.run(
        ["/bin/sh", "-e", "-c", command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr
    return ended.stdout


WITH_CERTIFICATES = ROOT / "docs" / "security.md"
PAGES = [page for page in pages() if page != WITH_CERTIFICATES and not all(map(needs_what_is_absent, commands_of(page)))]


@pytest.fixture
def served() -> Iterator[str]:
    with EmbeddedServer(store="memory:") as server:
        yield server.target


def prepare(target: str) -> None:
    """Create the agents that pages name: `buffer` has played, and `cell` may be promoted."""
    with Client(target) as client:
        client.create_agent("buffer", "streaming-buffer", seed=1)
        environment = scenario_named("streaming-buffer").environment()
        with client.episode("buffer", environment.reset()) as episode:
            while not episode.done:
                next_state, reward, costs, _ = environment.step(episode.action)
                episode.report(next_state, reward, costs)
        client.create_agent("cell", choice())
        for _ in range(20):
            number = client.start_episode("cell").episode
            client.report_episode("cell", number, [Transition(0, 0, 0)] * 2)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.timeout(900)
def test_the_commands_of_a_page_run_at_a_small_size(page: Path, served: str, tmp_path: Path) -> None:
    commands = commands_of(page)
    if not any("--create" in command for command in commands):
        prepare(served)
    for command in commands:
        if not needs_what_is_absent(command):
            finished(shortened(command), tmp_path, SAFE_PSRL_TARGET=served)


def test_commands_are_shortened() -> None:
    shown = [command for page in PAGES for command in commands_of(page)]
    assert len(shown) > 20
    assert shortened("safe-psrl experiment x --then y@30000 --episodes 35000 --seeds 10") == (
        "safe-psrl experiment x --then y@20 --episodes 40 --seeds 1"
    )
    for command in shown:
        assert needs_what_is_absent(command) or not re.search(r"(--episodes |--steps |@)\d{4}", shortened(command))


def test_the_commands_of_a_secured_service_run(tmp_path: Path) -> None:
    """With certificates for `localhost` in place of `service.example`."""
    Authority(tmp_path, "ca").sign("server", "DNS:localhost")  # writes ca.pem, server.pem and server.key
    *tokens, serve, listing = commands_of(WITH_CERTIFICATES)
    for command in tokens:
        finished(command, tmp_path)
    arguments = serve.replace("0.0.0.0:50551", "localhost:0").split()
    variables = {**os.environ, "SAFE_PSRL_METRICS": ""}
    command = [BIN / arguments[0], *arguments[1:]]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"Serving on localhost:(\d+)", server.stdout.readline())
            assert found
            finished(listing.replace("service.example:50551", f"localhost:{found[1]}"), tmp_path)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
