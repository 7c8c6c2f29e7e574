"""Faults of replicas on one PostgreSQL: clients call any of them, and one is killed or stopped, or the database restarted."""

import random
import signal
import time
from pathlib import Path
from typing import Final

import psycopg

from safe_psrl_proto.v1 import admin_pb2
from tests.faults.checker import gauges_of
from tests.faults.fault import SETTINGS, Fault, pause
from tests.system.postgres_process import PostgresProcess
from tests.system.server_process import ServerProcess, wait_until

REPLICAS: Final = 2


class Replicated(Fault):
    """Each attempt goes to a replica that is drawn anew, so that all of them write to every agent."""

    settings = f"refresh_seconds = 0.2\n{SETTINGS}"
    patience = 3.0

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        others = [ServerProcess(directory / f"replica-{i}", settings=self.settings) for i in range(1, REPLICAS)]
        self.replicas = [self.server, *others]
        self.postgres = PostgresProcess()

    def start(self) -> None:
        self.postgres.__enter__()
        for replica in self.replicas:
            replica.store = self.postgres.address
            replica.spawn()
        for replica in self.replicas:
            replica.wait_until_serving()

    @property
    def targets(self) -> list[str]:
        return [replica.target for replica in self.replicas]

    def settle(self) -> None:
        """Metrics may lag behind other replicas' work by `refresh_seconds`."""
        wait_until(self._is_fresh, 30, "the metrics show what was acknowledged")

    def _is_fresh(self) -> bool:
        gauges = gauges_of(self.server.http("/metrics")[1])
        listed = self.server.admin.ListAgents(admin_pb2.ListAgentsRequest(), timeout=30).agents  # may lag as well
        with psycopg.connect(self.postgres.address) as db:  # a call for an agent would bring it up to date
            stored = dict(db.execute("SELECT agent, version FROM safe_psrl_streams").fetchall())
        shown = [gauges.get(("observed_transitions", status.agent, "")) for status in listed]
        is_exact = {status.agent: status.version for status in listed} == stored
        return is_exact and shown == [status.transitions for status in listed]

    def close(self) -> None:
        for replica in self.replicas:
            replica.kill()
            replica.close()
        self.postgres.__exit__()


class ReplicaKilled(Replicated):
    title = "a replica killed, two on PostgreSQL"

    def strike(self) -> float:
        replica = self.chosen.choice(self.replicas)
        replica.kill()
        struck = time.monotonic()
        replica.spawn()
        replica.wait_until_serving()
        return struck


class ReplicaStopped(Replicated):
    """What it was about to append is old when it goes on."""

    title = "a replica stopped for 1 to 4 s, two on PostgreSQL"

    def strike(self) -> float:
        replica = self.chosen.choice(self.replicas)
        replica.signal(signal.SIGSTOP)
        pause(self.chosen.uniform(1.0, 4.0))
        replica.signal(signal.SIGCONT)
        return time.monotonic()


class DatabaseRestarted(Replicated):
    title = "PostgreSQL restarted, as asked or as after a crash"

    def strike(self) -> float:
        self.postgres.stop(self.chosen.choice([signal.SIGINT, signal.SIGQUIT]))
        struck = time.monotonic()
        self.postgres.start()
        return struck
