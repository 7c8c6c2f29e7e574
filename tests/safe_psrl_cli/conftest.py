"""Running the command in this process, which is fast, or as a user does, which is real."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from safe_psrl_cli.main import main
from tests.service_fixtures import agent_name, buffer, client, server  # noqa: F401  # fixtures


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


Command = Callable[..., Finished]


@pytest.fixture
def safe_psrl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`safe_psrl("spec", "show", "inventory")`, through the entry point's own function."""

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr("sys.argv", ["safe-psrl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        return Finished(left.value.code, shown.out, shown.err)

    return run


@pytest.fixture
def installed_safe_psrl(tmp_path: Path) -> Command:
    """The same by the installed script, in a process of its own."""

    def run(*arguments: str) -> Finished:
        script = Path(sys.executable).parent / "safe-psrl"
        ended = subprocess.run([script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    return run
