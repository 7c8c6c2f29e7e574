"""How the threads of a service are scheduled: those that wake do not interrupt the loop. Linux alone has such a wish."""

import os
import sys
from pathlib import Path

import pytest

from safe_psrl_cli.server_process import ServerProcess
from safe_psrl_server.embedded import EmbeddedServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems schedule as they like")


def test_the_threads_of_a_service_wake_without_interrupting(tmp_path: Path) -> None:
    """All of them, gRPC's included."""
    server = ServerProcess(tmp_path / "server")
    try:
        server.start()
        threads = [int(thread.name) for thread in Path(f"/proc/{server.pid}/task").iterdir()]
        assert len(threads) > 3
        assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
    finally:
        server.kill()


def test_an_embedded_service_leaves_its_process_alone() -> None:
    before = os.sched_getscheduler(0)
    with EmbeddedServer():
        assert os.sched_getscheduler(0) == before
