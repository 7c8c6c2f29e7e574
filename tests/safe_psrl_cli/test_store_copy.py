"""Moving agents between stores."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from safe_psrl_client import Client
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.store import StoredStream, open_store
from tests.system.postgres_process import PostgresProcess

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def _logs_end_with_the_test() -> Iterator[None]:
    """Servers in this process log to what pytest captures, which is gone afterwards."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with PostgresProcess("fsync=off") as postgres:
        yield postgres.new_database()


def test_copying_there_and_back_keeps_every_agent(safe_psrl: Command, tmp_path: Path, database: str) -> None:
    """Versions, digests and open episodes; the copies go on where the originals were."""
    first, second = f"sqlite:{tmp_path / 'first'}", f"sqlite:{tmp_path / 'second'}"
    with EmbeddedServer(first) as server, Client(server.target) as client:
        for name in ("deleted", "played", "untouched"):
            client.create_agent(name, "streaming-buffer", seed=5)
        client.delete_agent("deleted")
        action = client.start_episode("played", 0, request_id="key").action
        before = {status.agent: client.get_agent(status.agent).status for status in client.list_agents()}
    there = safe_psrl("store", "copy", "--from", first, "--to", database)
    assert (there.code, there.out.count("\n")) == (0, 1), there.err
    assert "2 agents with " in there.out
    assert safe_psrl("store", "copy", "--from", database, "--to", second).code == 0
    for store in (database, second):
        with EmbeddedServer(store) as server, Client(server.target) as client:
            assert {status.agent: client.get_agent(status.agent).status for status in client.list_agents()} == before
            again = client.start_episode("played", 0, request_id="key")
            assert (again.episode, again.action) == (1, action)
            assert safe_psrl("agent", "verify", "--all", "--target", server.target).code == 0


def test_a_store_with_an_agent_of_the_name_is_not_changed(safe_psrl: Command, tmp_path: Path) -> None:
    """Nothing is copied, not even the others."""
    source, target = f"sqlite:{tmp_path / 'source'}", f"sqlite:{tmp_path / 'target'}"
    for store, names in ((source, ("a", "b")), (target, ("b",))):
        with EmbeddedServer(store) as server, Client(server.target) as client:
            for name in names:
                client.create_agent(name, "streaming-buffer")
    refused = safe_psrl("store", "copy", "--from", source, "--to", target)
    assert refused.code == 2
    assert refused.err == "safe-psrl: 1 agents exist in the target already, such as 'b'; nothing was copied\n"
    with EmbeddedServer(target) as server, Client(server.target) as client:
        assert [status.agent for status in client.list_agents()] == ["b"]


def test_a_damaged_agent_is_named(safe_psrl: Command, tmp_path: Path) -> None:
    source = f"sqlite:{tmp_path / 'source'}"
    asyncio.run(_append_nonsense(source))
    refused = safe_psrl("store", "copy", "--from", source, "--to", f"sqlite:{tmp_path / 'target'}")
    assert refused.code == 2
    assert refused.err.splitlines()[-1].startswith("safe-psrl: agent 'a' is damaged: ")


@pytest.mark.parametrize("address", ["nonsense", "postgresql://127.0.0.1/x?nonsense=1"])
def test_an_invalid_store_is_one_line(safe_psrl: Command, tmp_path: Path, address: str) -> None:
    refused = safe_psrl("store", "copy", "--from", f"sqlite:{tmp_path / 'source'}", "--to", address)
    assert refused.code == 2
    assert refused.err.startswith("safe-psrl: store ")
    assert refused.err.count("\n") == 1


async def _append_nonsense(address: str) -> None:
    store = open_store(address)
    await store.open()
    await store.restore("a", StoredStream(None, [b"\xff\xff"], 1))
    await store.close()
