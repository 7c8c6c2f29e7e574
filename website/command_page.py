"""The reference of the command, from the help texts of typer."""

from collections.abc import Iterator
from typing import Any, Final

import typer

from safe_psrl_cli.main import app

CONNECTION: Final = {"--tls", "--tls-ca", "--tls-cert", "--tls-key", "--token-file"}  # the same in every command that has them
INTRODUCTION: Final = """# Command line

Every subcommand of `safe-psrl` with its arguments and options, as `--help` prints them. Exit codes: 0 success; 1 a
check failed; 2 a usage error; 3 the service failed or does not respond; 130 interrupted by Ctrl-C. `serve` also has
[74](../operations.md#start-and-stop).

"""


def content() -> str:
    command = typer.main.get_command(app)
    return INTRODUCTION + "".join(_sections(command, "safe-psrl", 2))


def _sections(command: Any, path: str, level: int) -> Iterator[str]:
    """The section of `command`, then those of its subcommands."""
    context = typer.Context(command, info_name=path)
    yield f"{'#' * level} `{path}`\n\n{_help(command.help or '')}"
    if not hasattr(command, "commands"):
        yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n\n"
    yield from _table(command, context)
    for name, subcommand in getattr(command, "commands", {}).items():
        if not subcommand.hidden:
            yield from _sections(subcommand, f"{path} {name}", min(level + 1, 4))


def _help(text: str) -> str:
    """Paragraphs of a docstring; an example is code."""
    paragraphs = [" ".join(line.strip() for line in part.splitlines()) for part in text.strip().split("\n\n")]
    return "".join(
        f"```text\n{paragraph.removeprefix('Example: ')}\n```\n\n" if paragraph.startswith("Example: ") else f"{paragraph}\n\n"
        for paragraph in paragraphs
        if paragraph
    )


def _table(command: Any, context: Any) -> Iterator[str]:
    records = [
        record
        for parameter in command.get_params(context)
        if not CONNECTION & set(parameter.opts) and "--help" not in parameter.opts
        if (record := parameter.get_help_record(context)) is not None
    ]
    if records:
        yield "| argument or option | meaning |\n|---|---|\n"
        yield "".join(f"| `{_cell(name)}` | {_cell(text)} |\n" for name, text in records)
        yield "\n"
    if any(CONNECTION & set(parameter.opts) for parameter in command.get_params(context)):
        yield "Also takes the [connection options](../security.md#clients).\n\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
