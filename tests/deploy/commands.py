"""Commands that end by themselves."""

import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.system.server_process import SCRIPT


def run(*command: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """A program, with no settings of the service in its environment but those that are given."""
    return subprocess.run(
        [str(part) for part in command], env=environment(settings), capture_output=True, text=True, check=False, timeout=120
    )


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SAFE_PSRL_")} | dict(settings)


def effective(file: Path, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What `safe-psrl serve` makes of a configuration file; AssertionError if it is refused."""
    ended = run(*SCRIPT, "serve", "--config", file, "--print-config", **(settings or {}))
    assert ended.returncode == 0, ended.stderr
    return tomllib.loads(ended.stdout)
