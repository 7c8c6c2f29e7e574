"""`safe-psrl store copy`: all agents from one store to another."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from safe_psrl_cli.connection import USER_MISTAKE, leave

if TYPE_CHECKING:
    from safe_psrl_server.store.copy import CopiedAgent
    from safe_psrl_server.store import EventStore


def copy(
    source: Annotated[str, typer.Option("--from", metavar="STORE", help="sqlite:DIR or postgresql://HOST/DATABASE.")],
    target: Annotated[str, typer.Option("--to", metavar="STORE", help="The same; must have none of the agents yet.")],
) -> None:
    """Copy all agents from one store to another, read each one back, and compare.

    Stop the service first: what it stores meanwhile would not be copied. Versions, open episodes and digests stay the same.

    Example: safe-psrl store copy --from sqlite:data --to postgresql://db/agents
    """
    from safe_psrl_server.store import StoreError, open_store, redacted_address  # noqa: PLC0415

    try:
        stores = open_store(source), open_store(target)
        copied = asyncio.run(_copied(*stores))
    except StoreError as error:
        leave(str(error), USER_MISTAKE)
    events = sum(agent.version for agent in copied)
    typer.echo(f"{len(copied):,} agents with {events:,} events copied to {redacted_address(target)}, each one verified")


async def _copied(source: "EventStore", target: "EventStore") -> "list[CopiedAgent]":
    from safe_psrl_cli.progress import progress_bar  # noqa: PLC0415
    from safe_psrl_server.store.copy import copy_agents, names_to_copy  # noqa: PLC0415

    await source.open()
    try:
        await target.open()
        try:
            names = await names_to_copy(source, target)
            with progress_bar("agents") as bar:
                task = bar.add_task("copying", total=len(names))
                return await copy_agents(source, target, names, lambda _: bar.advance(task))
        finally:
            await target.close()
    finally:
        await source.close()
