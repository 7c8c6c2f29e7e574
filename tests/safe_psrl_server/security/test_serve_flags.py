"""The flags of `safe-psrl serve` that are about security, as a user gives them."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.safe_psrl_server.metrics.scrapes import page

from safe_psrl_client import Client, UnauthenticatedError, tls_credentials

COMMAND = [sys.executable, "-m", "safe_psrl_cli.main", "serve"]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("SAFE_PSRL_")}


def serve(*flags: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In its own process, as it configures the logs of the process."""
    command = [*COMMAND, *map(str, flags)]
    return subprocess.run(command, env=CLEAN | variables, capture_output=True, text=True, check=False, timeout=120)


def test_flags_go_into_the_section_and_leave_the_rest_of_it(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('[security]\nopen_metrics = false\nkey = "of-the-file"\n')
    flags = ["--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a", "--identities", "i", "--insecure"]
    config = ("--config", tmp_path / "serve.toml", "--print-config")
    done = serve(*flags, *config, SAFE_PSRL_SECURITY__OPEN_REFLECTION="true")
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(done.stdout)["security"] == {
        "certificate": "c",
        "key": "k",
        "client_ca": "a",
        "identities": "i",
        "insecure": True,
        "open_reflection": True,
        "open_metrics": False,
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"], "nowhere.pem"),
        (["--tls-cert", "nowhere.pem"], "key must be set together"),
        (["--identities", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_what_cannot_be_used_ends_the_command_in_one_line(flags: list[str], message: str) -> None:
    done = serve("--store", "memory:", "--metrics", "", *flags)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("safe-psrl: ")
    assert message in line


@pytest.mark.slow
def test_a_process_with_tls_and_tokens_serves_and_leaves(make_authority: Any, identities: Any, tmp_path: Path) -> None:
    file, tokens = identities
    authority = make_authority("authority")
    certificate, key = authority.sign("server", "IP:127.0.0.1")
    flags = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--store", "memory:"]
    flags += ["--tls-cert", certificate, "--tls-key", key, "--identities", file]
    pipes: Any = {"stdout": subprocess.PIPE, "text": True}
    with (tmp_path / "log").open("w") as log, subprocess.Popen([*COMMAND, *flags], env=CLEAN, stderr=log, **pipes) as process:
        try:
            line = process.stdout.readline()
            target, http_port = re.match(r"Serving on (\S+); .* metrics at http://127\.0\.0\.1:(\d+)/", line).groups()
            assert page(int(http_port), "/healthz")[0] == 200
            credentials = tls_credentials(authority.certificate)
            with Client(target, credentials=credentials, token=tokens["admin"]) as client:
                client.create_agent("site/a", "inventory")
                assert [status.agent for status in client.list_agents()] == ["site/a"]
            with Client(target, credentials=credentials) as nobody, pytest.raises(UnauthenticatedError):
                nobody.get_agent("site/a")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    text = (tmp_path / "log").read_text()
    assert "identity=admin" in text
    assert not [token for token in tokens.values() if token in text]
