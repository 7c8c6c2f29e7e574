"""A replica as the Kubernetes manifests start it, on a real PostgreSQL: who has a token comes in, in plain text or by TLS."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.deploy.commands import environment, run
from tests.deploy.test_kubernetes import BASE, TLS, documents
from tests.system.debian import program
from tests.system.postgres_process import PostgresProcess
from tests.system.server_process import SCRIPT, START_SECONDS, wait_until

pytestmark = pytest.mark.slow

MOUNTED: Final = "/etc/safe-psrl"


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """What the manifests mount at MOUNTED: configuration, identities with one token, certificate."""
    for directory in ("identities", "tls"):
        (tmp_path / directory).mkdir()
    config = (BASE / "config.toml").read_text(encoding="utf-8")
    (tmp_path / "config.toml").write_text(config.replace(MOUNTED, str(tmp_path)), encoding="utf-8")
    identities = tmp_path / "identities" / "identities.toml"
    made = run(*SCRIPT, "token", "create", "--name", "ops", "--role", "admin", "--agents", "*", "--identities", identities)
    assert made.returncode == 0, made.stderr
    (tmp_path / "token").write_text(made.stdout, encoding="utf-8")
    key, certificate = tmp_path / "tls" / "tls.key", tmp_path / "tls" / "tls.crt"
    request = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=replica"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([program("openssl", "openssl"), "req", "-x509", *request, *names], check=True, capture_output=True)
    return tmp_path


@contextmanager
def replica(mounted: Path, store: str, settings: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """Where it listens, and its log; ended with SIGTERM."""
    log = mounted / "log"
    here = {"SAFE_PSRL_LISTEN": "0.0.0.0:0", "SAFE_PSRL_METRICS": "127.0.0.1:0", "SAFE_PSRL_STORE": store}
    command = [*SCRIPT, "serve", "--config", mounted / "config.toml"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment(here | settings), stdout=out, stderr=out)
    try:
        wait_until(
            lambda: process.poll() is not None or '"event": "serving"' in log.read_text(encoding="utf-8"),
            START_SECONDS,
            "the replica serves",
        )
        assert process.poll() is None, log.read_text(encoding="utf-8")
        ready = next(line for line in log.read_text(encoding="utf-8").splitlines() if '"event": "serving"' in line)
        yield f"127.0.0.1:{json.loads(ready)['target'].rpartition(':')[2]}", log
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def overlay(mounted: Path) -> dict[str, str]:
    """The variables of the TLS overlay."""
    (patch,) = documents(TLS / "deployment.yaml")
    (changed,) = patch["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"].replace(MOUNTED, str(mounted)) for entry in changed["env"]}


@pytest.mark.parametrize("tls", [False, True], ids=["base", "tls"])
def test_a_replica_lets_in_who_has_a_token(mounted: Path, tls: bool) -> None:
    trust = ["--tls-ca", mounted / "tls" / "tls.crt"] if tls else []
    with (
        PostgresProcess("fsync=off") as postgres,
        replica(mounted, postgres.address, overlay(mounted) if tls else {}) as (target, log),
    ):
        create = [*SCRIPT, "agent", "create", "one", "--preset", "factored-toy", "--target", target]
        assert run(*create, *trust).returncode != 0, "without a token"
        made = run(*create, *trust, "--token-file", mounted / "token")
        assert made.returncode == 0, made.stderr
        if tls:
            assert run(*create, "--token-file", mounted / "token").returncode != 0, "in plain text"
        assert ("plain text" in log.read_text(encoding="utf-8")) != tls  # it warns


def test_the_manifests_mount_where_the_configuration_looks() -> None:
    deployment = yaml.safe_load((BASE / "deployment.yaml").read_text(encoding="utf-8"))
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    assert all(mount["mountPath"].startswith(MOUNTED) or mount["name"] == "tmp" for mount in only["volumeMounts"])
