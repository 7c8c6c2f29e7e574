"""Every command and snippet of the README is run, and its table is what the experiment gives."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
SLOW = ("make demo", "safe-psrl experiment", "safe-psrl bench", "safe-psrl serve")
TIDY = "trap 'kill $! 2>/dev/null || true' EXIT\n"  # should a command fail before the block ends its background process
SHOWN = {"next_states": "640,000 counts", "GymBridge": "budget 4"}  # by a word of the snippet; the others show a budget of 5
TARGETS_NOT_RUN = {"make test", "make test-slow"}  # these tests are part of them
MAY_MISS_ITS_BAR = "safe-psrl bench"  # a busy machine is no reason to fail: exit code 1 says that a bar was missed


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.strip() and not line.startswith("#")]


def shell_blocks() -> list[object]:
    return [
        pytest.param(
            block, id=commands(block)[-1][:60], marks=[pytest.mark.slow] if any(word in block for word in SLOW) else []
        )
        for block in blocks("sh")
        if not set(commands(block)) <= TARGETS_NOT_RUN
    ]


def snippets() -> list[object]:
    return [pytest.param(block, marks=[pytest.mark.slow] if "GymBridge" in block else []) for block in blocks("python")]


def shortened(command: str) -> str:
    """The comparison of all systems takes minutes at full length, and a bench of large problems most of one; what they give
    is tested by itself."""
    command = command.replace("bench plan", "bench plan --rounds 1").replace("bench scrape", "bench scrape --rounds 2")
    return command.replace("400000", "300") if "--algorithms all" in command else command


def run(command: str, directory: Path, activated: bool) -> subprocess.CompletedProcess[str]:
    """As a newcomer would type it in a checkout, except that nothing is written there."""
    environment = {**os.environ, "OUT": str(directory / "demo-results")}
    if activated:
        environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
    where = ROOT if command.startswith("make ") else directory
    return subprocess.run(
        ["/bin/sh", "-e", "-c", command], cwd=where, env=environment, capture_output=True, text=True, check=False, timeout=500
    )


@pytest.mark.parametrize("block", shell_blocks())
def test_the_commands_of_a_block_work(block: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(BIN.parent)
    activated = False
    for command in [TIDY + block] if " &\n" in block else commands(block):  # a background process needs one shell for all
        ended = run(shortened(command), tmp_path, activated)
        allowed = {0, 1} if command.startswith(MAY_MISS_ITS_BAR) else {0}
        assert ended.returncode in allowed, f"{command}\n{ended.stdout}\n{ended.stderr}"
        assert "Traceback" not in ended.stderr
        activated = activated or command == ". .venv/bin/activate"
    if "make demo" in block:
        assert list((tmp_path / "demo-results").glob("*.png"))
    if "--json" in block:
        assert all(json.loads(path.read_text(encoding="utf-8"))["results"] for path in tmp_path.glob("*.json"))
    if "--algorithms safe-psrl --episodes 400000" in block:
        assert_the_table_is_true(json.loads((tmp_path / "results" / "summary.json").read_text(encoding="utf-8")))


def assert_the_table_is_true(summary: dict[str, object]) -> None:
    measured = summary["algorithms"]["safe-psrl"]
    rows = {
        "objective regret": "objective_regret",
        "constraint regret": "constraint_regret",
        "greatest constraint regret ever reached": "constraint_regret_max",
        "episodes whose expected cost was above the budget": "violating_episodes",
    }
    for label, key in rows.items():
        found = re.search(rf"^\| {label} \| (\S+) ± (\S+) \|$", README, flags=re.MULTILINE)
        assert found, label
        mean, std = (float(number.replace(",", "")) for number in found.groups())
        assert mean == pytest.approx(measured[key]["mean"], rel=0.01, abs=0.06), label
        assert std == pytest.approx(measured[key]["std"], rel=0.01, abs=0.6), label


@pytest.mark.parametrize("snippet", snippets())
def test_the_snippets_run(snippet: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert next((shown for word, shown in SHOWN.items() if word in snippet), "budget 5") in ended.stdout
    if "GymBridge" in snippet:
        (early, spent), (late, spent_late) = (
            map(float, row) for row in re.findall(r"warm (\S+) .* heated (\S+),", ended.stdout)
        )
        assert early < late
        assert spent + spent_late <= 8


def test_an_environment_of_ones_own_is_the_second_section_and_takes_25_lines() -> None:
    first, second = README.split("\n## ")[1:3]
    assert first.startswith("See it work")
    [snippet] = re.findall(r"^```python\n(.*?)^```$", second, flags=re.DOTALL | re.MULTILINE)
    assert "gymnasium.Env" in snippet
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 25


def test_the_readme_has_what_is_tested_here() -> None:
    """So that a change of its mark-up cannot empty these tests."""
    assert len(blocks("sh")) >= 6
    assert len(blocks("python")) >= 2
    assert "make demo" in "".join(blocks("sh"))
    assert README.count("```") == 2 * (len(blocks("sh")) + len(blocks("python")))


def test_make_test_is_in_the_readme_and_is_what_ci_runs() -> None:
    """These tests are part of it, so it is not run from here."""
    assert "make test" in [command for block in blocks("sh") for command in commands(block)]
    assert set((ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()) >= TARGETS_NOT_RUN


def test_the_directories_of_the_map_exist() -> None:
    directories = re.findall(r"^\| `([a-z_/]+)` \|", README, flags=re.MULTILINE)
    assert len(directories) >= 5
    for directory in directories:
        assert (ROOT / directory).is_dir(), directory


def test_the_readme_is_short() -> None:
    """Details belong into docs/."""
    assert len(README.splitlines()) <= 200
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.DOTALL | re.MULTILINE)
    paragraphs = [part for part in re.split(r"\n\n+", prose) if part and not part.startswith(("|", "#", "- ", "!"))]
    assert [part for part in paragraphs if part.strip().count("\n") >= 5] == []
