"""`safe-psrl serve`: the line that it prints when it is ready."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from safe_psrl_client import Client

COMMAND = [sys.executable, "-m", "safe_psrl_cli.main", "serve", "--listen", "127.0.0.1:0", "--warm-up", "published"]
LINE = r"Serving on (\S+); data in (.+); (metrics at \S+|no metrics); live page: safe-psrl console --target (\S+)\n"


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, *options], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_one_line_has_every_address_and_the_data(tmp_path: Path) -> None:
    with serving(tmp_path, "--metrics", "127.0.0.1:0", "--store", "sqlite:data") as process:
        assert process.stdout is not None
        found = re.fullmatch(LINE, process.stdout.readline())
        assert found
        target, data, metrics, watched = found.groups()
        assert (data, watched) == (str(tmp_path / "data"), target)
        with Client(target) as client:
            assert not list(client.list_agents())
        with urllib.request.urlopen(metrics.removeprefix("metrics at "), timeout=30) as reply:  # noqa: S310  # our own process
            assert b"safe_psrl_" in reply.read()
    assert (tmp_path / "data").is_dir()


def test_the_line_of_a_service_without_metrics_and_files(tmp_path: Path) -> None:
    with serving(tmp_path, "--metrics", "", "--store", "memory:") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
    assert "; data in memory only; no metrics; " in line
    assert re.fullmatch(LINE, line)


def test_json_logs_have_the_addresses_and_standard_output_is_empty(tmp_path: Path) -> None:
    with serving(tmp_path, "--metrics", "", "--store", "memory:", "--log-format", "json") as process:
        assert process.stderr is not None
        assert json.loads(process.stderr.readline())["event"] == "serving"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == ""


def test_json_logs_have_the_warnings_of_libraries_too(tmp_path: Path) -> None:
    """Such as those of OpenTelemetry, whose collector is not there."""
    options = ("--metrics", "", "--store", "memory:", "--log-format", "json", "--otlp", "http://127.0.0.1:1")
    with serving(tmp_path, *options) as process:
        assert process.stderr is not None
        with Client(json.loads(process.stderr.readline())["target"]) as client:
            assert not list(client.list_agents())
        process.send_signal(signal.SIGTERM)  # the spans that are left are sent
        lines = [json.loads(line) for line in process.communicate(timeout=60)[1].splitlines()]
    assert any(line.get("logger", "").startswith("opentelemetry") for line in lines)


@pytest.mark.parametrize("option", [("--backup-every", "1h"), ("--backup-keep", "3")], ids=" ".join)
def test_backups_need_a_directory(tmp_path: Path, option: tuple[str, str]) -> None:
    ended = subprocess.run([*COMMAND, *option], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("safe-psrl: --backup-every and --backup-keep need --backup-to DIR")
    assert ended.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["everything", ""])
def test_an_unknown_method_to_warm_up_is_one_line(tmp_path: Path, method: str) -> None:
    command = [*COMMAND, "--store", "memory:", "--metrics", "", "--warm-up", method]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"safe-psrl: warm_up: {method!r} must be one of all, ")
    assert ended.stderr.count("\n") == 1
