"""`safe-psrl store backup` and `restore`: copies of an embedded store, the first while its server runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safe_psrl_cli.connection import USER_MISTAKE, leave

if TYPE_CHECKING:
    from safe_psrl_server.store.backup import Copied

SCHEME = "sqlite:"
Source = Annotated[str, typer.Option("--from", metavar="STORE", show_default=False, help="The embedded store: sqlite:DIR.")]
Backup = Annotated[Path, typer.Argument(metavar="DIRECTORY", show_default=False, help="Of the backup.")]
Target = Annotated[str, typer.Option("--to", metavar="STORE", show_default=False, help="A new one: sqlite:DIR.")]


def backup(directory: Backup, source: Source) -> None:
    """Copy an embedded store into a new directory, while its server runs or not, and check every event of the copy.

    The server goes on meanwhile; the copy is what one of its commits left. A copy is a data directory itself.
    With PostgreSQL, use its own tools.

    Example: safe-psrl store backup backups/monday --from sqlite:data
    """
    copied = _copied(_directory(source), directory)
    typer.echo(f"{directory} has {_told(copied)}")


def restore(directory: Backup, target: Target) -> None:
    """Copy a backup to where a server shall find it, and check every event of it.

    An existing directory is never written to: move it away first.

    Example: safe-psrl store restore backups/monday --to sqlite:data
    """
    copied = _copied(directory, _directory(target))
    typer.echo(f"{target} has {_told(copied)}")


def _directory(store: str) -> Path:
    if not store.startswith(SCHEME) or store == SCHEME:
        raise typer.BadParameter(f"{store!r} is no embedded store: write sqlite:DIR", param_hint="STORE")
    return Path(store.removeprefix(SCHEME))


def _copied(source: Path, destination: Path) -> "Copied":
    from safe_psrl_server.store import StoreError  # noqa: PLC0415
    from safe_psrl_server.store.backup import copy_directory  # noqa: PLC0415

    try:
        return copy_directory(source, destination)
    except StoreError as error:
        leave(str(error), USER_MISTAKE)


def _told(copied: "Copied") -> str:
    return f"{copied.agents:,} agents as of commit {copied.commits:,}, {copied.size:,} bytes, all read back and whole"
