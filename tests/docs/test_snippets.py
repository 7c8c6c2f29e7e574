"""The snippets of the pages for users run as they stand, one page after the other in a directory of its own.

A block that begins with a file's name as a comment (`# machine.toml`) is written to that file. Commands of a page run in one
shell, in order; those of `make` only have to be targets. Other addresses than the default ones let pages run side by side.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, pages
from tests.system.server_process import reserved_port
from tests.test_readme import BIN, TIDY, blocks, commands

WRITTEN_FOR_USERS = (
    "getting-started",
    "your-environment",
    "protocol",
    "algorithm",
    "library",
    "experiments",
    "gymnasium",
    "trust",
    "continuing",
)
FILE = re.compile(r"^# ([\w-]+\.\w+)\n")
EXECUTED = {"sh", "python"}
SHOWN = {"text", "go", "mermaid", "toml", "json", "console"}
DEFAULT_TARGET = "127.0.0.1:50551"


def content(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def with_commands() -> list[str]:
    return [name for name in WRITTEN_FOR_USERS if blocks("sh", content(name))]


def script_of(page: str) -> str:
    lines = "".join(blocks("sh", page)).splitlines()
    return TIDY + "\n".join(line for line in lines if not line.startswith("make ")) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", with_commands())
def test_the_commands_of_a_page_run(name: str, tmp_path: Path) -> None:
    target, page = f"127.0.0.1:{reserved_port()}", content(name)
    (tmp_path / ".venv").symlink_to(BIN.parent)
    for block in blocks("toml", page) + blocks("python", page):
        if named := FILE.match(block):
            (tmp_path / named[1]).write_text(block.replace(DEFAULT_TARGET, target), encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "SAFE_PSRL_LISTEN": target,
        "SAFE_PSRL_METRICS": "",
        "SAFE_PSRL_TARGET": target,
    }
    ended = subprocess.run(
        ["/bin/sh", "-e", "-c", script_of(page).replace(DEFAULT_TARGET, target)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def python_blocks() -> list[object]:
    """Those that are not written to a file which a command runs."""
    return [
        pytest.param(block, id=f"{name}-{number}")
        for name in WRITTEN_FOR_USERS
        for number, block in enumerate(blocks("python", content(name)))
        if not FILE.match(block)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("block", python_blocks())
def test_the_python_of_a_page_runs(block: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", block]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.parametrize("name", WRITTEN_FOR_USERS)
def test_every_block_is_run_or_only_to_be_looked_at(name: str) -> None:
    page = content(name)
    languages = re.findall(r"^```(\w*)$", page, flags=re.MULTILINE)[::2]
    assert set(languages) <= EXECUTED | SHOWN
    written = [named[1] for block in blocks("toml", page) + blocks("python", page) if (named := FILE.match(block))]
    script = script_of(page)
    assert [file for file in written if file not in script] == []


def test_targets_of_make_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = [
        command.split()[1]
        for page in pages()
        for block in blocks("sh", page.read_text(encoding="utf-8"))
        for command in commands(block)
        if command.startswith("make ")
    ]
    assert len(named) >= 2
    assert set(named) <= targets


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_in_pages_can_be_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in blocks("toml", text):
        assert tomllib.loads(block)
    for block in blocks("json", text):
        assert json.loads(block)
