"""`safe-psrl agent export`: an agent as a file, or what it saw as a log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, AsJson, Name, Target, connected, print_json, say

if TYPE_CHECKING:
    from safe_psrl_client import Client


def export(
    name: Name,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", show_default=False, dir_okay=False, help="Where to write it.")
    ] = None,
    transitions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Write the transitions that are still stored instead: .csv, .jsonl or .parquet.",
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Write an agent with all that it learned to a file, for `safe-psrl agent import`.

    With --transitions, a log of what it saw, for `safe-psrl agent create --from-log`. Snapshots drop older transitions.

    Example: safe-psrl agent export buffer buffer.agent
    """
    if (file is None) == (transitions is None):
        raise typer.BadParameter("give either FILE or --transitions FILE", param_hint="FILE")
    with connected(target) as client:
        written = _whole(client, name, file) if file is not None else _log(client, name, transitions or Path())
    if as_json:
        print_json(written)
        return
    if file is not None:
        say(f"wrote {file} ({written['bytes']:,} bytes)")
        return
    dropped = f"; {written['dropped']:,} older ones are only kept as counts" if written["dropped"] else ""
    say(f"wrote {transitions} ({written['rows']:,} transitions{dropped})")


def _whole(client: "Client", name: str, file: Path) -> dict[str, Any]:
    content = client.export_agent(name)
    partial = file.with_name(file.name + ".partial")  # FILE is complete or unchanged
    partial.write_bytes(content)
    partial.replace(file)
    return {"agent": name, "file": str(file), "bytes": len(content)}


def _log(client: "Client", name: str, file: Path) -> dict[str, Any]:
    log = client.export_transitions(name)
    log.write(file)
    return {"agent": name, "file": str(file), "rows": len(log.rows), "dropped": log.dropped}
