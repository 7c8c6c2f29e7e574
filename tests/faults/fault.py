"""What a fault is: a service, and how to harm it. One class per fault, one file per family."""

import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.faults.traffic import Traffic
from tests.system.server_process import SCRIPT, ServerProcess, wait_until

STORE_FAILED = 74
LEAVING_SECONDS = 60.0
SNAPSHOT_EVENTS = 40  # few, so that streams are shortened between faults too
SETTINGS = f"drain_seconds = 5\n[snapshots]\nevery_events = {SNAPSHOT_EVENTS}\n"


class Fault:
    """A server and one way to harm it. A round is one `strike`."""

    title: ClassVar[str]  # in the table
    note: str = ""  # measured meanwhile, for the table
    short_rounds: ClassVar[int] = 1  # in `make test`
    settings: ClassVar[str] = SETTINGS
    patience: ClassVar[float] = 2.0  # of an attempt, in seconds
    uncertain: ClassVar[frozenset[str]] = frozenset()  # further statuses after which the outcome is unknown
    repeats_by_network: ClassVar[bool] = False  # so that a first attempt may be a repetition
    single_client: ClassVar[bool] = False  # so that no commit is shared
    restarts_at_the_end: ClassVar[bool] = False  # so that what is judged was read back from the store

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        self.directory = directory
        self.chosen = chosen
        self.server = ServerProcess(directory / "server", metrics=True, settings=self.settings, command=self.command())

    def command(self) -> Sequence[str]:
        """What stands before `serve`."""
        return SCRIPT

    def start(self) -> None:
        self.server.start()

    @property
    def targets(self) -> list[str]:
        """Where clients call."""
        return [self.server.target]

    def strikes_at(self, traffic: Traffic) -> None:
        """The calls that are harmed."""
        self.traffic = traffic
        traffic.has_ended = self.has_ended

    def strike(self) -> float:
        """Cause the fault and repair it. Returns the moment from which recovery is measured."""
        raise NotImplementedError

    def has_ended(self) -> bool:
        """Whether the server exited by itself."""
        return self.server.process is not None and self.server.process.poll() is not None

    def settle(self) -> None:
        """When clients have finished, before the verdict."""
        if self.restarts_at_the_end:
            self.server.kill()
            self.server.start()

    def close(self) -> None:
        self.server.kill()
        self.server.close()

    # --- shared

    def fails_to_write(self) -> float:
        """Wait until the server detects that it cannot write and exits as it should."""
        code = self.leaves()
        left = time.monotonic()
        assert code == STORE_FAILED, f"it exited with {code}: {self.server.log}"
        last = self.server.log.splitlines()[-1]
        assert last.startswith(f"safe-psrl: a commit to {self.server.data} failed: "), last
        assert "nothing that was acknowledged is lost" in last, last
        assert "Traceback" not in self.server.log, self.server.log
        return left

    def leaves(self) -> int:
        """The exit code of a server that must end by itself."""
        try:
            return self.server.wait(LEAVING_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError("the server goes on although a write failed") from None


def pause(seconds: float) -> None:
    """The length of a fault, not a wait for luck."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 60, "time passes")
