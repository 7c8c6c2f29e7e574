"""What a fault is: a service to strike at, and how. One class for each, in a file for each family."""

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.system.server_process import SCRIPT, ServerProcess, wait_until

from tests.faults.load import Traffic

AWAKE = (sys.executable, str(Path(__file__).parent / "awake_server.py"))
STORE_FAILED = 74
LEAVING_SECONDS = 60.0
SNAPSHOT_EVENTS = 40  # few, so that streams are shortened between faults too
SETTINGS = f"drain_seconds = 5\n[snapshots]\nevery_events = {SNAPSHOT_EVENTS}\n"


class Fault:
    """A server and one way to harm it. A round is one `strike`."""

    title: ClassVar[str]  # in the table
    note: str = ""  # what was measured beside, for the table
    short_rounds: ClassVar[int] = 1  # in `make test`
    settings: ClassVar[str] = SETTINGS
    patience: ClassVar[float] = 2.0  # of an attempt, in seconds
    uncertain: ClassVar[frozenset[str]] = frozenset()  # statuses after which nobody knows, beside the usual ones
    repeats_by_network: ClassVar[bool] = False  # so that a first attempt may be a repetition
    has_one_player: ClassVar[bool] = False  # who is alone: nobody shares a commit, and the disk is waited for awake
    restarts_at_the_end: ClassVar[bool] = False  # what is judged is what is read back

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        self.directory = directory
        self.chosen = chosen
        self.server = ServerProcess(directory / "server", metrics=True, settings=self.settings, command=self.command())

    def command(self) -> Sequence[str]:
        """What stands before `serve`."""
        return AWAKE if self.has_one_player else SCRIPT

    def start(self) -> None:
        self.server.start()

    @property
    def targets(self) -> list[str]:
        """Where clients call."""
        return [self.server.target]

    def strikes_at(self, traffic: Traffic) -> None:
        """Whose calls it strikes."""
        self.traffic = traffic
        traffic.has_ended = self.has_ended

    def strike(self) -> float:
        """Do it, and undo it. The moment from which on everything should be well again."""
        raise NotImplementedError

    def has_ended(self) -> bool:
        """Whether the server is gone, though nobody made it go."""
        return self.server.process is not None and self.server.process.poll() is not None

    def settle(self) -> None:
        """When clients have finished, before the verdict."""
        if self.restarts_at_the_end:
            self.server.kill()
            self.server.start()

    def close(self) -> None:
        self.server.kill()
        self.server.close()

    # --- what several of them do

    def fails_to_write(self) -> float:
        """Wait until the server has noticed that it cannot write, and has left as it should."""
        code = self.leaves()
        left = time.monotonic()
        assert code == STORE_FAILED, f"it left with {code}: {self.server.log}"
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
            raise AssertionError("the server goes on as if nothing had happened") from None


def pause(seconds: float) -> None:
    """The length of a fault, not a wait for luck."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 60, "time passes")
