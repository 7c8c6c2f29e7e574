"""What `safe-psrl serve` makes of an example configuration."""

import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.system.server_process import SCRIPT


def effective(file: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The configuration in force; AssertionError if it is refused."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SAFE_PSRL_")}
    ended = subprocess.run(
        [*SCRIPT, "serve", "--config", file, "--print-config"],
        env=clean | dict(environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return tomllib.loads(ended.stdout)
