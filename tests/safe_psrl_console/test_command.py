"""`safe-psrl console` as a command: help that teaches, mistakes in one line, a clean end."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from safe_psrl_cli.demo_console import DemoConsole

from tests.safe_psrl_console.conftest import outside_pytest

BIN = Path(sys.executable).parent / "safe-psrl"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([BIN, "console", *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_its_help_teaches_by_example() -> None:
    ended = run("--help")
    assert ended.returncode == 0
    assert max(len(line) for line in ended.stdout.splitlines()) <= 80
    assert "…" not in ended.stdout
    assert "safe-psrl console --target 10.0.0.7:50551 --listen 127.0.0.1:8600" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--target", "nowhere"], "target 'nowhere': write host:port"),
        (["--listen", "8600"], "listen '8600': write HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "write HOST:PORT"),
        (["--listen", "192.0.2.1:8600"], "cannot listen on 192.0.2.1:8600"),
        (["--listen", "no.such.host.invalid:8600"], "cannot listen on no.such.host.invalid:8600"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], part: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("safe-psrl: ")
    assert ended.stderr.count("\n") == 1
    assert part in ended.stderr


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "Address already in use" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_without_a_service_and_leaves_cleanly(number: signal.Signals) -> None:
    command = [BIN, "console", "--target", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=outside_pytest()) as process:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        with urllib.request.urlopen(url, timeout=30) as reply:  # noqa: S310  # our own process
            assert b"Safe PSRL" in reply.read()
        process.send_signal(number)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (0, "", "")


def test_the_demonstration_has_one_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with DemoConsole("127.0.0.1:1") as page:
        assert page.why_not == ""
        with urllib.request.urlopen(page.url, timeout=30) as reply:  # noqa: S310  # our own process
            assert b"Safe PSRL" in reply.read()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page.url, timeout=30)  # noqa: S310


def test_the_demonstration_does_without_if_nicegui_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safe_psrl_cli.demo_console.find_spec", lambda _: None)
    with DemoConsole("127.0.0.1:1") as page:
        assert page.url == ""
        assert "pip install 'safe-psrl[console]'" in page.why_not
