"""Stores of every format stay readable for ever: each directory of `formats` was written by the release that introduced it.

A new format gets a new directory; those that are here are never changed. `expected.json` has what the agents were, both in the
SQLite directory and in the PostgreSQL tables that `postgres.sql` makes.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.store.postgres import schema
from safe_psrl_server.store.sqlite.streams import SCHEMA_VERSION
from tests.safe_psrl_server.wire import serving

FORMATS = Path(__file__).parent / "formats"
NewStore = Callable[[int, str], str]


@pytest.fixture
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> NewStore:
    """`stored(number, kind)`: the address of a store with the agents of that format."""

    def make(number: int, kind: str) -> str:
        if kind == "sqlite":
            shutil.copytree(FORMATS / str(number), tmp_path / "data")
            return f"sqlite:{tmp_path / 'data'}"
        database: str = request.getfixturevalue("database")
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute((FORMATS / str(number) / "postgres.sql").read_bytes())
        return database

    return make


def test_every_format_has_a_store() -> None:
    assert sorted(int(path.name) for path in FORMATS.iterdir()) == list(range(1, SCHEMA_VERSION + 1))
    assert schema.SCHEMA_VERSION == SCHEMA_VERSION


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("number", range(1, SCHEMA_VERSION + 1))
def test_a_store_of_an_older_format_is_opened_verified_and_goes_on(number: int, kind: str, stored: NewStore) -> None:
    expected: dict[str, dict[str, Any]] = json.loads((FORMATS / str(number) / "expected.json").read_text())
    store = stored(number, kind)
    for _ in range(2):
        with serving(store=store) as wire:
            assert {status.agent for status in wire.list().agents} == expected.keys()
            for name, known in expected.items():
                status = wire.admin.GetAgent(admin_pb2.GetAgentRequest(agent=name)).status
                assert {field: getattr(status, field) for field in known} == known
                assert wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=name)).ok
    with serving(store=store) as wire:
        assert [status.agent for status in wire.list(condition=admin_pb2.AGENT_CONDITION_PAUSED).agents] == ["cell/paused"]
        wire.admin.ResumeAgent(admin_pb2.ResumeAgentRequest(agent="cell/paused"))
        for name in expected:
            request = control_pb2.StartEpisodeRequest(agent=name, state=0, abandon_open=True)
            assert wire.control.StartEpisode(request).episode == expected[name]["episode"] + 1
            assert wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=name)).ok
