"""The benchmark of the store, in small."""

import psycopg
import pytest

from safe_psrl_experiments.bench import store


def test_it_compares_with_bare_inserts_and_leaves_nothing_behind(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "AGENTS", (1, 4))
    monkeypatch.setattr(store, "TURN_SECONDS", 0.05)
    results = store.bench_store(database, rounds=1)
    assert [result.name.split(",")[0] for result in results] == ["appends of 1 agents", "appends of 4 agents"]
    assert all(result.value > 0 and result.limit > 0 for result in results)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'safe_psrl_bench'").fetchall() == []
