"""`safe-psrl console` as a command: help with examples, mistakes in one line, a clean exit."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from safe_psrl_cli.child_process import ConsoleProcess
from tests.safe_psrl_console.conftest import outside_pytest

BIN = Path(sys.executable).parent / "safe-psrl"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([BIN, "console", *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_its_help_has_an_example() -> None:
    assert "safe-psrl console --target 10.0.0.7:50551 --listen 127.0.0.1:8600" in run("--help").stdout


@pytest.mark.parametrize(
    ("option", "address", "part"),
    [
        ("--target", "nowhere", "target 'nowhere': write host:port"),
        ("--listen", "8600", "listen '8600': write HOST:PORT"),
        ("--listen", "127.0.0.1:99999", "write HOST:PORT"),
        ("--listen", "192.0.2.1:8600", "cannot listen on 192.0.2.1:8600"),
        ("--listen", "no.such.host.invalid:8600", "cannot listen on no.such.host.invalid:8600"),
        ("--listen", "127.0.0.1:{taken}", "Address already in use"),
    ],
)
def test_a_mistake_is_one_line(option: str, address: str, part: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run(option, address.format(taken=taken.getsockname()[1]))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("safe-psrl: ")
    assert ended.stderr.count("\n") == 1
    assert part in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_without_a_service_and_exits_cleanly(number: signal.Signals) -> None:
    command = [BIN, "console", "--target", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=outside_pytest()) as process:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        with urllib.request.urlopen(url, timeout=30) as reply:  # noqa: S310  # our own process
            assert b"Safe PSRL" in reply.read()
        process.send_signal(number)
        out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (0, "", "")


def test_the_demo_starts_and_stops_a_console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    page = ConsoleProcess("127.0.0.1:1", tmp_path / "console.log")
    url = page.start()
    with urllib.request.urlopen(url, timeout=30) as reply:  # noqa: S310  # our own process
        assert b"Safe PSRL" in reply.read()
    assert page.stop() == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=30)  # noqa: S310


def test_a_console_without_nicegui_fails_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("safe_psrl_cli.child_process.find_spec", lambda _: None)
    page = ConsoleProcess("127.0.0.1:1", tmp_path / "console.log")
    with pytest.raises(RuntimeError, match=r"pip install 'safe-psrl\[console\]'"):
        page.start()
    assert page.stop() == 0
