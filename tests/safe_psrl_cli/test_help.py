"""Help that teaches, at 80 columns."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from safe_psrl.version import __version__
from safe_psrl_cli.connection import PRESETS
from safe_psrl_cli.main import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """`command` and all its subcommands."""
    yield path
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, (*path, name))


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.parametrize("command", list(commands(typer.main.get_command(app))), ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_explains_itself_with_an_example(
    safe_psrl: Callable[..., Any], command: tuple[str, ...], option: str
) -> None:
    ended = safe_psrl(*command, option)
    assert ended.code == 0
    assert ended.err == ""
    assert "Example" in ended.out
    assert re.search(rf"safe-psrl {' '.join(command)}", ended.out)
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert "…" not in re.sub(r"random:…|, …\)", "", ended.out)  # nothing is cut off


@pytest.mark.parametrize("command", [(), ("bench",), ("simulate",), ("spec",)], ids=" ".join)
def test_a_command_that_lacks_its_subcommand_shows_its_help(safe_psrl: Callable[..., Any], command: tuple[str, ...]) -> None:
    ended = safe_psrl(*command)
    assert ended.code == 2
    assert "Commands" in ended.out
    assert "safe-psrl:" not in ended.err


def test_paragraphs_fill_the_width_and_commands_are_in_the_order_of_use(safe_psrl: Callable[..., Any]) -> None:
    """Not the line breaks of the docstring, nor commands before groups."""
    lines = [line.strip() for line in safe_psrl("demo", "--help").out.splitlines()]
    begin = next(i for i, line in enumerate(lines) if line.startswith("The server is a separate process"))
    assert all(len(line) > 60 for line in lines[begin : lines.index("", begin) - 1])
    text = safe_psrl("--help").out
    places = [text.index(f"│ {name} ") for name in ("demo", "serve", "agent", "simulate", "console", "spec", "doctor", "bench")]
    assert places == sorted(places)


def test_the_experiments_help_names_environments_parameters_and_presets(safe_psrl: Callable[..., Any]) -> None:
    text = safe_psrl("experiment", "--help").out
    environments = ("streaming-buffer", "inventory", "factored-toy", "random:")
    assert [word for word in (*environments, "--set", "pessimism_coefficient", "theorem", "Ctrl-C") if word not in text] == []


def test_the_algorithms_are_listed(safe_psrl: Callable[..., Any]) -> None:
    ended = safe_psrl("experiment", "streaming-buffer", "--algorithms", "list")
    assert ended.code == 0
    assert ended.out.startswith("safe-psrl ")


def test_the_version(safe_psrl: Callable[..., Any], installed_safe_psrl: Callable[..., Any]) -> None:
    for run in (safe_psrl, installed_safe_psrl):
        ended = run("--version")
        assert (ended.code, ended.out, ended.err) == (0, f"safe-psrl {__version__}\n", "")


@pytest.mark.parametrize("command", [("agent", "create"), ("spec", "show"), ("simulate",), ("experiment",)], ids=" ".join)
def test_the_presets_are_named(safe_psrl: Callable[..., Any], command: tuple[str, ...]) -> None:
    path = (*command, "continuing-buffer") if command == ("simulate",) else command
    text = re.sub(r"[\s│]+", " ", safe_psrl(*path, "--help").out)
    assert [name for name in PRESETS if name not in text] == []
