"""A fleet that is too large to be watched: the agents closest to their budgets, and those whose pages are open."""

import asyncio

import pytest

from safe_psrl_client import AsyncClient
from safe_psrl_console import connection as connections
from safe_psrl_console.connection import Connection, watch
from safe_psrl_console.fleet import MOST_WANTED, Fleet
from safe_psrl_server.embedded import EmbeddedServer
from tests.safe_psrl_server.specs import make_spec
from tests.safe_psrl_server.wire import Wire


async def until(fleet: Fleet, names: set[str]) -> None:
    async with asyncio.timeout(20):
        while set(fleet.agents) != names:  # noqa: ASYNC110  # the fleet has no event
            await asyncio.sleep(0.02)


async def test_a_large_fleet_is_listed_and_a_smaller_one_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_WATCHED", 2)
    monkeypatch.setattr(connections, "LIST_SECONDS", 0.05)
    fleet = Fleet()
    with EmbeddedServer() as server, Wire(server.target) as wire:
        for name in ("a", "b", "c", "d"):
            await asyncio.to_thread(wire.create, make_spec(), name)
        async with AsyncClient(server.target) as client:
            watching = asyncio.create_task(watch(Connection(client, fleet)))
            await until(fleet, {"c", "d"})
            assert "Only the 2 agents" in fleet.headline().detail
            assert fleet.knows("c")
            assert not fleet.knows("a")
            for name in ("a", "nobody", "no name\0"):
                fleet.want(name)
            await until(fleet, {"a", "c", "d"})
            assert fleet.knows("nobody")
            before = fleet.revision
            fleet.begin_large([one.status for one in fleet.agents.values()], ["a"], 2, 0.0)
            assert fleet.revision == before, "what did not change is not sent again"
            for name in ("b", "c"):
                await asyncio.to_thread(wire.delete, name)
            await until(fleet, {"a", "d"})
            async with asyncio.timeout(20):
                while fleet.shown:  # noqa: ASYNC110  # the same
                    await asyncio.sleep(0.02)
            assert "Only" not in fleet.headline().detail
            watching.cancel()


def test_so_many_opened_pages_are_remembered() -> None:
    fleet = Fleet()
    for number in range(MOST_WANTED + 5):
        fleet.want(f"agent-{number}")
    assert len(fleet.wanted) == MOST_WANTED
    assert "agent-0" not in fleet.wanted
