"""The distributions: what is in them, and that the wheel works where there is no checkout."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = sorted(
    path.parent for place in ("proto", "server", "client", "experiments") for path in ROOT.glob(f"{place}/*/__init__.py")
)
LIGHT: Final = {"googleapis-common-protos", "grpcio", "grpcio-status", "protobuf", "safe-psrl", "typing-extensions"}
OUTSIDE: Final = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "SAFE_PSRL"))}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` leaves in dist/."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", directory, ROOT], check=True, capture_output=True)
    return directory


@pytest.fixture
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


class Installation:
    """A virtual environment with the wheel and nothing else of ours, used from an empty directory."""

    def __init__(self, directory: Path, wheel: str) -> None:
        self._bin, self.empty = directory / "venv" / "bin", directory / "empty"
        self.empty.mkdir()
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
        constraints = ROOT / "constraints.txt"
        self.run("python", "-m", "pip", "install", "--quiet", "--constraint", str(constraints), wheel).check_returncode()

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._bin / program, *arguments]
        return subprocess.run(command, cwd=self.empty, env=OUTSIDE, capture_output=True, text=True, check=False)

    def distributions(self) -> set[str]:
        listed = self.run("python", "-m", "pip", "list", "--format", "json")
        return {entry["name"].lower().replace("_", "-") for entry in json.loads(listed.stdout)} - {"pip", "setuptools"}


def test_the_wheel_has_every_package_with_its_types_the_contract_and_the_license(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert len(PACKAGES) == 9
    for package in PACKAGES:
        assert f"{package.name}/py.typed" in names
        files = {path for path in package.rglob("*") if path.suffix in {".py", ".proto", ".css", ".js"}}
        assert {str(path.relative_to(package.parent)) for path in files} <= names
    assert "safe_psrl_proto/v1/control.proto" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".nbi", ".nbc", ".pyc"))]


def test_the_source_distribution_has_the_license(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "constraints.txt", "pyproject.toml"} <= files


def test_the_light_client_needs_grpc_only(wheel: Path, tmp_path: Path) -> None:
    """It imports without numpy, and the command fails with what to install."""
    light = Installation(tmp_path, str(wheel))
    assert light.distributions() == LIGHT
    code = "import importlib.util, safe_psrl_client; print(importlib.util.find_spec('numpy'), safe_psrl_client.Client.__name__)"
    assert light.run("python", "-c", code).stdout == "None Client\n"
    ended = light.run("safe-psrl", "demo")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "safe-psrl: the command needs more than the light client: pip install 'safe-psrl[demo]'\n"


def test_the_demo_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    installed = Installation(tmp_path, f"{wheel}[demo]")
    assert not {"pytest", "mypy", "gymnasium", "distributed"} & installed.distributions()
    ended = installed.run("safe-psrl", "demo", "--seconds", "4", "--out", "out")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Watch it live at http://" in ended.stdout
    assert json.loads((installed.empty / "out" / "summary.json").read_text(encoding="utf-8"))["equals_uninterrupted"]
    assert (installed.empty / "out" / "demo.png").stat().st_size > 0
    assert "horizon = " in installed.run("safe-psrl", "spec", "show", "inventory").stdout
    ended = installed.run("safe-psrl", "serve", "--store", "postgresql://localhost/none")
    assert (ended.returncode, ended.stderr) == (
        2,
        "safe-psrl: PostgreSQL needs its driver: pip install 'safe-psrl[postgres]'\n",
    )
