"""A standby of the database: promoted, it takes the place of the primary without loss; before that it serves no agent."""

import time
from collections.abc import Iterator

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.system.players import Player, check_player, in_threads, streaming_buffer
from tests.system.postgres_process import PostgresProcess
from tests.system.server_process import NewServer, show
from tests.system.test_crash import Progress

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def primary() -> Iterator[PostgresProcess]:
    with PostgresProcess("hot_standby=on") as primary:
        yield primary


@pytest.fixture
def standby(primary: PostgresProcess) -> Iterator[PostgresProcess]:
    """The primary acknowledges only what it has, too."""
    standby = primary.new_standby()
    standby.start()
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.execute("SELECT pg_reload_conf()")
    yield standby
    standby.__exit__()


def test_a_promoted_standby_has_all_that_was_acknowledged(
    primary: PostgresProcess, standby: PostgresProcess, new_server: NewServer
) -> None:
    """The address names both hosts, so replicas find the one that accepts writes."""
    replicas, progress = [new_server() for _ in range(2)], Progress()
    for replica in replicas:
        replica.store = (
            f"postgresql://postgres@/postgres?host={primary.directory},{standby.directory}&target_session_attrs=read-write"
        )
        replica.start()
    players = [Player(replicas[i % 2], f"agent-{i}", streaming_buffer, i, progress.acknowledged) for i in range(4)]
    for player in players:
        player.create()
    with in_threads(progress.keep, [player.play_episode for player in players], progress.stop):
        progress.wait_for(200)
        began, calls = time.monotonic(), progress.calls
        primary.kill()
        standby.execute("SELECT pg_promote()")
        progress.wait_for(calls + 50 - progress.calls)
        show(f"50 calls after the loss of the primary: {time.monotonic() - began:.1f} s")
        progress.wait_for(200)
    progress.raise_failure()
    for player in players:
        check_player(player)


def test_a_replica_on_a_standby_lists_agents_and_plays_none(
    primary: PostgresProcess, standby: PostgresProcess, new_server: NewServer
) -> None:
    writer, reader = new_server(), new_server()
    writer.store, reader.store = primary.address, standby.address
    writer.start()
    player = Player(writer, "buffer", streaming_buffer)
    player.create()
    player.play_episode()
    writer.stop()
    reader.start()
    (status,) = reader.admin.ListAgents(admin_pb2.ListAgentsRequest()).agents
    assert status.transitions == sum(player.ledger.counts.flat)
    with pytest.raises(grpc.RpcError) as refused:
        reader.control.StartEpisode(control_pb2.StartEpisodeRequest(agent="buffer"), timeout=60)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "read-only" in refused.value.details()
