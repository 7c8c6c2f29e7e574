"""A thousand agents in one server: how long it takes to start and to recover, and what they weigh."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from safe_psrl_proto.v1 import admin_pb2
from tests.system.players import Player, check_player, streaming_buffer
from tests.system.server_process import NewServer, ServerProcess, show

pytestmark = pytest.mark.slow

AGENTS = 1000
PLAYED = 20
MOST_BYTES_AN_AGENT = 1_000_000
MOST_RECOVERY_SECONDS = 30.0


def recovery_seconds(server: ServerProcess) -> float:
    """As the server itself says."""
    (line,) = [line for line in server.log.splitlines() if '"event": "serving"' in line]
    seconds: float = json.loads(line)["recovery_seconds"]
    return seconds


def agent_names(server: ServerProcess) -> Iterator[str]:
    request = admin_pb2.ListAgentsRequest(page_size=300)
    while True:
        page = server.admin.ListAgents(request, timeout=60)
        yield from (status.agent for status in page.agents)
        request.page_token = page.next_page_token
        if not request.page_token:
            return


def test_a_thousand_agents(new_server: NewServer) -> None:
    server = new_server(metrics=True)
    show(f"start, empty: {server.start():.2f} s")
    players = [Player(server, f"agent-{number:04}", streaming_buffer, seed=number) for number in range(AGENTS)]
    before, began = server.resident_bytes, time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(Player.create, players))
    show(f"created {AGENTS} agents in {time.monotonic() - began:.2f} s")
    each = (server.resident_bytes - before) / AGENTS
    show(f"resident: {before / 1e6:.0f} MB empty, {each / 1e3:.1f} kB an agent")
    assert each < MOST_BYTES_AN_AGENT

    for player in players[:PLAYED]:
        player.play_episode()
        player.play_episode()
    server.kill()
    started = server.start()
    show(f"after a kill: serving in {started:.2f} s, of which recovery {recovery_seconds(server):.2f} s")
    assert recovery_seconds(server) < MOST_RECOVERY_SECONDS
    assert list(agent_names(server)) == [player.agent for player in players]

    began = time.monotonic()
    assert server.stop() == 0
    show(f"stopped, with {AGENTS} snapshots, in {time.monotonic() - began:.2f} s")
    started = server.start()
    show(f"after a stop: serving in {started:.2f} s, of which recovery {recovery_seconds(server):.2f} s")
    assert recovery_seconds(server) < MOST_RECOVERY_SECONDS
    for player in (*players[:PLAYED], players[-1]):
        player.play_episode()
        check_player(player)
