"""The Dockerfile: what it promises, and, by `make deploy-check`, its steps executed and a server started from them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.prometheus_tools import DEPLOY
from tests.system.server_process import reserved_port, wait_until

sys.path.insert(0, str(DEPLOY / "scripts"))

from run_dockerfile_steps import DOCKERFILE, Ignored, instructions

ROOT: Final = DEPLOY.parent
STEPS: Final = list(instructions(DOCKERFILE.read_text(encoding="utf-8")))
ASKED_FOR: Final = "SAFE_PSRL_DEPLOY_CHECK"
STEPS_SECONDS: Final = 1_500  # two minutes of one processor; others may want it too
START_SECONDS: Final = 60.0  # a start that compiles takes longer; one that loads takes three


def words(instruction: str) -> list[str]:
    return [rest for word, rest in STEPS if word == instruction]


def test_the_base_is_pinned_and_the_same_in_both_stages() -> None:
    (base,) = [rest for rest in words("ARG") if rest.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+", base)
    assert words("FROM") == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]  # a virtual environment needs its own Python


def test_it_runs_as_nobody_in_particular() -> None:
    (user,) = words("USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)  # a number, so that runAsNonRoot can be checked
    last = [word for word, _ in STEPS]
    assert "RUN" not in last[last.index("USER") :]


def test_what_is_copied_exists_and_is_let_in() -> None:
    ignored = Ignored((ROOT / ".dockerignore").read_text(encoding="utf-8"))
    for rest in words("COPY"):
        *sources, _ = [part for part in rest.split() if not part.startswith("--")]
        if "--from" not in rest:
            for source in sources:
                assert (ROOT / source).exists(), source
                ignored.check(source)
    with pytest.raises(SystemExit):
        ignored.check("tests")
    assert ignored.names("", ["a.py", "__pycache__", "a-1.py311.nbi"]) == {"__pycache__", "a-1.py311.nbi"}


def test_kernels_are_for_the_processor_that_they_are_compiled_for() -> None:
    """numba's cache counts only for the processor that it was made for, so both stages must name the same."""
    build, final = " ".join(f"{word} {rest}" for word, rest in STEPS).split("FROM ")[1:]
    for setting in ("ARG KERNEL_CPU=generic", "ENV NUMBA_CPU_NAME=${KERNEL_CPU}", 'ENV NUMBA_CPU_FEATURES=""'):
        assert setting in build
        assert setting in final


def test_its_health_is_the_services() -> None:
    (check,) = words("HEALTHCHECK")
    assert json.loads(check[check.index("[") :])[-1].endswith("/healthcheck.py")
    assert os.access(DOCKERFILE.parent / "entrypoint.sh", os.X_OK)


@pytest.fixture(scope="module")
def image() -> Iterator[dict[str, Any]]:
    """What the Dockerfile's steps leave in an empty directory that an unprivileged user can reach."""
    if not os.environ.get(ASKED_FOR):
        pytest.skip("installs and compiles everything anew, some minutes: make deploy-check")
    directory = Path(tempfile.mkdtemp(prefix="safe-psrl-image-"))
    directory.chmod(0o755)
    script = DEPLOY / "scripts" / "run_dockerfile_steps.py"
    try:
        subprocess.run([sys.executable, script, directory], check=True, timeout=STEPS_SECONDS, stdout=subprocess.DEVNULL)
        yield json.loads((directory / "image.json").read_text(encoding="utf-8")) | {"directory": directory / "image"}
    finally:
        subprocess.run(["/bin/chmod", "-R", "u+w", directory], check=False)
        shutil.rmtree(directory)


def contained(image: dict[str, Any], settings: dict[str, str]) -> dict[str, Any]:
    """As whom, where and with what a container runs."""
    user = image["user"]
    identity = {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}
    return {"env": image["environment"] | settings, "cwd": image["workdir"], **identity}


def files(directory: Path) -> set[Path]:
    writable = (directory / "tmp", directory / "var" / "lib" / "safe-psrl")
    return {path for path in directory.rglob("*") if not any(path.is_relative_to(place) for place in writable)}


def healthy(image: dict[str, Any], address: str, how: dict[str, Any]) -> bool:
    return subprocess.run([*image["healthcheck"], address], check=False, capture_output=True, **how).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", ["serve", "console"])
def test_both_start_from_a_read_only_tree(image: dict[str, Any], part: str) -> None:
    """At once, as an unprivileged user, leaving the tree as it was; and end at SIGTERM."""
    grpc, http = f"127.0.0.1:{reserved_port()}", f"127.0.0.1:{reserved_port()}"
    how = contained(image, {"SAFE_PSRL_LISTEN": grpc, "SAFE_PSRL_METRICS": http})
    command = image["cmd"] if part == "serve" else ["console", "--target", grpc, "--listen", http]
    page = f"http://{http}/healthz" if part == "serve" else f"http://{http}/"
    before = files(image["directory"])
    process = subprocess.Popen([*image["entrypoint"], *command], **how)
    try:
        wait_until(lambda: process.poll() is not None or healthy(image, page, how), START_SECONDS, "it is healthy")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert not healthy(image, page, how)
    assert files(image["directory"]) == before
