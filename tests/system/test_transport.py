"""Which threads of gRPC a call wakes in a service of its own process."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from server_process import ServerProcess

CALLS = 200

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted as Linux does")


@pytest.mark.parametrize(("experiments", "wakes"), [(None, False), ("", True)])
def test_calls_are_read_by_the_thread_that_waits_for_them(
    new_server: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch, experiments: str | None, wakes: bool
) -> None:
    """And not by gRPC's pool, whose threads would wake for each; unless the environment says otherwise."""
    if experiments is not None:
        monkeypatch.setenv("GRPC_EXPERIMENTS", experiments)
    server = new_server()
    server.start()
    assert server.process is not None
    before = _wakes(server.process.pid)
    for _ in range(CALLS):
        server.health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert (_wakes(server.process.pid) - before > CALLS) == wakes


def _wakes(pid: int) -> int:
    """How often threads of the pool went to sleep until now. Those that ended meanwhile are left out."""
    woken = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            if (task / "comm").read_text().startswith("event_engine"):
                woken += int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return woken
