"""Three times as many agents as fit into memory, played at once, while the server is killed: nothing is lost or done twice."""

import pytest

from tests.system.players import Player, check_player, streaming_buffer
from tests.system.server_process import NewServer, counter
from tests.system.test_crash import Progress, play_under_fire

pytestmark = pytest.mark.slow

RESIDENT = 4
SETTINGS = f"[snapshots]\nevery_events = 50\n[limits]\nmax_resident_agents = {RESIDENT}\n"


def test_agents_that_come_and_go_are_exact_through_kills(started_server: NewServer) -> None:
    server, progress = started_server(settings=SETTINGS, metrics=True), Progress()
    players = [
        Player(server, f"agent-{number:02}", streaming_buffer, number, progress.acknowledged) for number in range(3 * RESIDENT)
    ]
    for player in players:
        player.create()
    play_under_fire(server, [player.play_episode for player in players], progress, kills=4)
    server.wait_until_serving()
    for player in players:
        check_player(player)
    _, page = server.http("/metrics")
    assert counter(page, "agents") == len(players)
    assert counter(page, "agent_evictions_total") > 0
    assert counter(page, "resident_agents") <= RESIDENT + 1
