"""All faults, in the order of the table."""

from typing import Final

from faults.clocks import ClockJumps
from faults.disks import DiskFull, SyncFails, TornWrite, WriteFails
from faults.fault import Fault
from faults.processes import Killed, KilledWhileStarting, Restarted, Stopped

FAULTS: Final[tuple[type[Fault], ...]] = (
    Killed,
    KilledWhileStarting,
    Stopped,
    Restarted,
    DiskFull,
    WriteFails,
    SyncFails,
    TornWrite,
    ClockJumps,
)
