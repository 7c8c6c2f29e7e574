"""The systemd unit: systemd accepts it, finds little to object to, and it fits the configuration beside it."""

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.commands import effective, run
from tests.deploy.prometheus_tools import DEPLOY
from tests.system.server_process import SCRIPT

UNIT: Final = DEPLOY / "systemd" / "safe-psrl.service"
INSTALLED: Final = "/opt/safe-psrl/bin/safe-psrl"
EXPOSURE: Final = "15"  # tenths of systemd's own measure, where 100 is wide open


@pytest.fixture(scope="module")
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("needs systemd-analyze")
    return found


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """As shipped, but for where the command is."""
    text = UNIT.read_text(encoding="utf-8")
    assert text.count(INSTALLED) == 1
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace(INSTALLED, SCRIPT[0]), encoding="utf-8")
    return copy


def test_systemd_accepts_it(analyze: str, unit: Path) -> None:
    ended = run(analyze, "verify", unit)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_check_notices_a_misspelt_setting(analyze: str, unit: Path) -> None:
    unit.write_text(unit.read_text(encoding="utf-8").replace("ProtectSystem=", "ProtectSytem="), encoding="utf-8")
    assert "ProtectSytem" in run(analyze, "verify", unit).stderr


def test_it_is_hardened(analyze: str, unit: Path) -> None:
    ended = run(analyze, "security", "--offline=true", f"--threshold={EXPOSURE}", unit)
    assert ended.returncode == 0, ended.stdout


def test_the_configuration_beside_it_fits() -> None:
    config = effective(UNIT.parent / "config.toml")
    assert config["store"] == "sqlite:/var/lib/safe-psrl/data"  # within its StateDirectory
    assert config["listen"].startswith("127.0.0.1:")
    text = UNIT.read_text(encoding="utf-8")
    assert "StateDirectory=safe-psrl\n" in text
    assert "NUMBA_CACHE_DIR=/var/cache/safe-psrl" in text
    assert "MemoryDenyWriteExecute" not in text  # kernels are compiled
    stop = next(line for line in text.splitlines() if line.startswith("TimeoutStopSec="))
    assert float(stop.partition("=")[2]) > config["drain_seconds"] + 10


def test_what_the_operations_guide_installs_is_there() -> None:
    guide = (DEPLOY.parent / "docs" / "operations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/])(?:\.\./)?(deploy/[\w./-]*[\w-])", guide)) - {"deploy/compose/.env"}
    assert {"deploy/systemd/safe-psrl.service", "deploy/compose", "deploy/kubernetes/tls", "deploy/docker/Dockerfile"} <= named
    assert [path for path in sorted(named) if not (DEPLOY.parent / path).exists()] == []
    unit = UNIT.read_text(encoding="utf-8")
    for place in ("/opt/safe-psrl/bin", "/etc/safe-psrl/config.toml"):
        assert place in guide
        assert place in unit
