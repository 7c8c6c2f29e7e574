"""Programs that come from Debian's packages: installed where that is possible, or the test is skipped with the reason."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

SECONDS = 500


def program(name: str, package: str) -> str:
    """The path of `name`, which Debian's `package` has. Skips the test if there is none and none can be installed."""
    found = shutil.which(name)
    if found is None:
        _install(package)
        found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install {package}")
    return found


@cache
def _install(package: str) -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # asks nothing, starts no service
    with (Path(tempfile.gettempdir()) / "safe-psrl-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
            subprocess.run(
                [apt, "-o", "DPkg::Lock::Timeout=300", "--quiet", *command],
                env=quiet,
                check=False,
                capture_output=True,
                timeout=SECONDS,
            )
