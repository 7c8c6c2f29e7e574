"""How the threads of a service are scheduled: those that wake do not interrupt the loop. Linux alone has such a wish."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from safe_psrl_cli.server_process import ServerProcess
from safe_psrl_server.embedded import EmbeddedServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems schedule as they like")


@pytest.mark.parametrize(("prefer", "scheduler"), [(None, "SCHED_BATCH"), ("latency", "SCHED_OTHER")])
def test_the_threads_of_a_service_wake_without_interrupting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefer: str | None, scheduler: str
) -> None:
    """The loop's and gRPC's, unless latency is preferred. Threads of a library that had them before are not concerned."""
    if prefer is not None:
        monkeypatch.setenv("SAFE_PSRL_PREFER", prefer)
    server = ServerProcess(tmp_path / "server")
    try:
        server.start()
        of_grpc = _schedulers(server.pid, "event_engine")
        assert of_grpc
        assert {os.sched_getscheduler(server.pid), *of_grpc} == {getattr(os, scheduler)}
    finally:
        server.kill()


def _schedulers(pid: int, name: str) -> list[int]:
    """Of the threads whose name begins so; gRPC ends those that it has no work for, at any moment."""
    found = list[int]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().startswith(name):
                found.append(os.sched_getscheduler(int(task.name)))
    return found


def test_an_embedded_service_leaves_its_process_alone() -> None:
    before = os.sched_getscheduler(0)
    with EmbeddedServer():
        assert os.sched_getscheduler(0) == before
