"""A commit that fails stops the server at once, and costs nothing that was acknowledged."""

import resource
import threading
from collections.abc import Callable

from players import Player, check_player, streaming_buffer
from server_process import ServerProcess


def limit_files_to(most_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def test_a_full_disk_stops_the_server_and_loses_nothing(new_server: Callable[..., ServerProcess]) -> None:
    """Files may not grow beyond a limit, which SQLite meets as it would meet a full disk: a write fails in a commit."""
    server = new_server()
    server.preexec = lambda: limit_files_to(1_000_000)
    server.start()
    player, enough = Player(server, "buffer", streaming_buffer), threading.Event()
    player.create()

    def play() -> None:
        while not enough.is_set():
            player.play_episode()

    playing = threading.Thread(target=play, daemon=True)
    playing.start()
    assert server.wait() == 74
    last = server.log.splitlines()[-1]
    assert last.startswith(f"safe-psrl: a commit to {server.data} failed: ")
    assert "nothing that was acknowledged is lost" in last
    assert "Traceback" not in server.log

    server.preexec = None
    server.start()
    enough.set()
    playing.join(60)
    assert not playing.is_alive()
    player.play_episode()
    check_player(player)
