"""Commands that pages show exist, with the options that they show, whether or not a test runs them."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from safe_psrl_cli.main import app
from tests.docs.markdown import ROOT, pages

COMMAND = re.compile(r"(?:^(?: {4}|\$ )?|`)(safe-psrl [a-z][^`\n]*)", flags=re.MULTILINE)

SHORT = "environment"  # `simulate ENVIRONMENT` is short for `simulate environment ENVIRONMENT`


def shown(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return [found.split(" #")[0].split(" > ")[0].rstrip(" &") for found in COMMAND.findall(text)]


def unknown_parts(line: str) -> list[str]:
    """Subcommands and options of `line` that there are not."""
    command: Any = typer.main.get_command(app)
    unknown = []
    for word in shlex.split(line, posix=True)[1:]:
        if word.startswith("--") and word != "--help":
            options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            unknown += [word] if word.partition("=")[0] not in options else []
        elif hasattr(command, "commands"):
            if word not in command.commands and SHORT not in command.commands:
                return [*unknown, word]
            command = command.commands.get(word) or command.commands[SHORT]
    return unknown


@pytest.mark.parametrize("page", [page for page in pages() if shown(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    found = {line: unknown for line in shown(page) if "…" not in line and (unknown := unknown_parts(line))}
    assert found == {}


def test_commands_were_found_and_wrong_ones_are_detected() -> None:
    assert sum(len(shown(page)) for page in pages()) >= 60
    assert unknown_parts("safe-psrl agent create x --preset inventory") == []
    assert unknown_parts("safe-psrl agent crate x") == ["crate"]
    assert unknown_parts("safe-psrl serve --stor sqlite:data") == ["--stor"]
