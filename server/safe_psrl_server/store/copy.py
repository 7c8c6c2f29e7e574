"""Agents from one store to another, each one read back and compared. Nothing is overwritten."""

from collections.abc import Callable
from dataclasses import dataclass

from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import folded, snapshot_of
from safe_psrl_server.store import DamagedStreamError, EventStore, StoreError, VersionConflictError


@dataclass(frozen=True)
class CopiedAgent:
    """What was copied of one agent. A deleted one has no digest."""

    name: str
    version: int
    digest: str


async def names_to_copy(source: EventStore, target: EventStore) -> list[str]:
    """Every agent of `source`. Raises `StoreError` if one of them is in `target` already."""
    names = sorted(await source.heads())
    taken = sorted(set(names) & set(await target.heads()))
    if taken:
        raise StoreError(f"{len(taken)} agents exist in the target already, such as {taken[0]!r}; nothing was copied")
    return names


async def copy_agents(
    source: EventStore, target: EventStore, names: list[str], report: Callable[[str], None] = lambda _: None
) -> list[CopiedAgent]:
    """Copy `names`, one after the other. Raises `StoreError` at the first that cannot be copied; those before it are."""
    copied = []
    for name in names:
        copied.append(await _copy(source, target, name))
        report(name)
    return copied


async def _copy(source: EventStore, target: EventStore, name: str) -> CopiedAgent:
    try:
        stream = await source.load(name)
        record = folded(name, stream)
        await target.restore(name, stream)
        found = folded(name, await target.load(name))
    except DamagedStreamError as error:
        raise StoreError(f"agent {name!r} is damaged: {error}") from error
    except VersionConflictError as error:
        raise StoreError(f"agent {name!r} was created meanwhile: {error}") from error
    if snapshot_of(found) != snapshot_of(record) or _digest(found) != _digest(record):
        raise StoreError(f"agent {name!r} differs from its source after copying: delete the new store and check its disk")
    return CopiedAgent(name, record.version, _digest(record))


def _digest(record: AgentRecord) -> str:
    return record.digest() if record.exists else ""
