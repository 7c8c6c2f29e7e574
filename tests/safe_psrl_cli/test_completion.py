"""The shell completes commands, presets and environments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from safe_psrl.problem import presets
from safe_psrl_cli.connection import PRESETS


def completions(*words: str) -> list[str]:
    """Of the last word, as bash requests them from the installed command."""
    request = {"_SAFE_PSRL_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    script = Path(sys.executable).parent / "safe-psrl"
    ended = subprocess.run([script], env=os.environ | request, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("safe-psrl", "ag"), ["agent"]),
        (("safe-psrl", "agent", "pa"), ["pause"]),
        (("safe-psrl", "agent", "create", "x", "--preset", "str"), ["streaming-buffer"]),
        (("safe-psrl", "spec", "check", "fac"), ["factored-toy"]),
        (("safe-psrl", "simulate", "str"), ["streaming-buffer"]),
        (("safe-psrl", "simulate", "lte"), ["lte-cell"]),
    ],
)
def test_a_word_is_completed(words: tuple[str, ...], wanted: list[str]) -> None:
    assert completions(*words) == wanted


def test_all_presets_are_completed() -> None:
    assert tuple(presets.PRESETS) == PRESETS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_be_set_up(shell: str) -> None:
    """Requested as a shell does: `--show-completion` prints the same for the shell that it runs in."""
    script, request = Path(sys.executable).parent / "safe-psrl", {"_SAFE_PSRL_COMPLETE": f"source_{shell}"}
    ended = subprocess.run([script], env=os.environ | request, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "_SAFE_PSRL_COMPLETE" in ended.stdout
