"""`safe-psrl store`: back up, restore and copy stores."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safe_psrl_cli.connection import USER_MISTAKE, leave

if TYPE_CHECKING:
    from safe_psrl_server.store import EventStore

SCHEME = "sqlite:"
Backup = Annotated[Path, typer.Argument(metavar="DIRECTORY", show_default=False, help="Directory of the backup.")]

app = typer.Typer(
    help="""Back up, restore and copy a service's store.

    Example: safe-psrl store backup backups/monday --from sqlite:data
    """,
    no_args_is_help=True,
)


@app.command("backup")
def backup(
    directory: Backup,
    source: Annotated[str, typer.Option("--from", metavar="STORE", show_default=False, help="The embedded store: sqlite:DIR.")],
) -> None:
    """Copy an embedded store into a new directory, while its server runs or not, and check every event of the copy.

    The server is not stopped; the copy is the state after one of its commits, and is itself a data directory.
    With PostgreSQL, use its own tools.

    Example: safe-psrl store backup backups/monday --from sqlite:data
    """
    typer.echo(f"{directory} has {_copy_directory(_directory(source), directory)}")


@app.command("restore")
def restore(
    directory: Backup,
    target: Annotated[str, typer.Option("--to", metavar="STORE", show_default=False, help="A new store: sqlite:DIR.")],
) -> None:
    """Copy a backup to a server's data directory, and check every event of it.

    An existing directory is never written to: move it away first.

    Example: safe-psrl store restore backups/monday --to sqlite:data
    """
    typer.echo(f"{target} has {_copy_directory(directory, _directory(target))}")


@app.command("copy")
def copy(
    source: Annotated[str, typer.Option("--from", metavar="STORE", help="sqlite:DIR or postgresql://HOST/DATABASE.")],
    target: Annotated[str, typer.Option("--to", metavar="STORE", help="A store that has none of these agents.")],
) -> None:
    """Copy all agents from one store to another, read each one back, and compare.

    Stop the service first: later events would not be copied. Versions, open episodes and digests stay the same.

    Example: safe-psrl store copy --from sqlite:data --to postgresql://db/agents
    """
    from safe_psrl_server.store import StoreError, open_store, redacted_address  # noqa: PLC0415

    try:
        versions = asyncio.run(_copy_agents(open_store(source), open_store(target)))
    except StoreError as error:
        leave(str(error), USER_MISTAKE)
    address = redacted_address(target)
    typer.echo(f"{len(versions):,} agents with {sum(versions):,} events copied to {address}, each one verified")


def _directory(store: str) -> Path:
    if not store.startswith(SCHEME) or store == SCHEME:
        raise typer.BadParameter(f"{store!r} is not an embedded store: use sqlite:DIR", param_hint="STORE")
    return Path(store.removeprefix(SCHEME))


def _copy_directory(source: Path, destination: Path) -> str:
    from safe_psrl_server.store import StoreError  # noqa: PLC0415
    from safe_psrl_server.store.backup import copy_directory  # noqa: PLC0415

    try:
        copied = copy_directory(source, destination)
    except StoreError as error:
        leave(str(error), USER_MISTAKE)
    return f"{copied.agents:,} agents as of commit {copied.commits:,}, {copied.size:,} bytes, all read back intact"


async def _copy_agents(source: "EventStore", target: "EventStore") -> list[int]:
    """The versions of the agents that were copied."""
    from safe_psrl_cli.tables import progress_bar  # noqa: PLC0415
    from safe_psrl_server.store.backup import copy_agents, names_to_copy  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        for store in (source, target):
            await store.open()
            stack.push_async_callback(store.close)
        names = await names_to_copy(source, target)
        with progress_bar("agents") as bar:
            task = bar.add_task("copying", total=len(names))
            copied = await copy_agents(source, target, names, lambda _: bar.advance(task))
    return [agent.version for agent in copied]
