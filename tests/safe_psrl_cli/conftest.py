"""Running the command in this process, which is fast, or as a user does, which is real."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.service_fixtures import Command, Finished, agent_name, buffer, client, safe_psrl, server  # noqa: F401  # fixtures


@pytest.fixture
def installed_safe_psrl(tmp_path: Path) -> Command:
    """The same by the installed script, in a process of its own."""

    def run(*arguments: str) -> Finished:
        script = Path(sys.executable).parent / "safe-psrl"
        ended = subprocess.run([script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    return run
