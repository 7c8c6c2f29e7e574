"""A server on a free port, a host without a network, and stores of each kind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from safe_psrl import warm_up
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.store import EventStore, open_store
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.wire import Wire
from tests.system.postgres_process import PostgresProcess


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Kernels are compiled or loaded before any test's time runs."""
    warm_up()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(drain_seconds=2.0) as server:
        yield server


@pytest.fixture(scope="module")
def wire(server: EmbeddedServer) -> Iterator[Wire]:
    with Wire(server.target) as wire:
        yield wire


@pytest.fixture
def agent(wire: Wire) -> str:
    """A fresh agent."""
    return wire.create()


@pytest.fixture
async def new_bench() -> AsyncIterator[NewBench]:
    """`await new_bench(...)`: a host as `Bench` makes it, open until the end of the test."""
    made: list[Bench] = []

    async def make(*store: EventStore | str, **settings: Any) -> Bench:
        made.append(await Bench(*store, **settings).open())
        return made[-1]

    yield make
    for bench in made:
        await bench.close()


@pytest.fixture
async def bench(new_bench: NewBench) -> Bench:
    return await new_bench()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    """A real database server."""
    with PostgresProcess("fsync=off") as postgres:
        yield postgres


@pytest.fixture
def database(postgres: PostgresProcess) -> str:
    """The address of an empty database."""
    return postgres.new_database()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """Each store that keeps the contract, open."""
    addresses = {"memory": lambda: "memory:", "sqlite": lambda: f"sqlite:{tmp_path / 'data'}"}
    store = open_store(addresses.get(request.param, lambda: request.getfixturevalue("database"))())
    await store.open()
    yield store
    await asyncio.shield(store.close())
