"""All faults, in the order of the table."""

from typing import Final

from tests.faults.clocks import ClockJumps
from tests.faults.damages import Damaged
from tests.faults.disks import DiskFull, DiskStalls, DiskStallsRetried, SyncFails, TornWrite, TornWriteSingle, WriteFails
from tests.faults.fault import Fault
from tests.faults.networks import Cuts, Delays, Duplicates, Silence
from tests.faults.processes import Killed, KilledSingle, KilledWhileStarting, Restarted, Stopped
from tests.faults.replicas import DatabaseRestarted, ReplicaKilled, ReplicaStopped
from tests.faults.resources import IdleConnections, NoMemory, SlowReaders

FAULTS: Final[tuple[type[Fault], ...]] = (
    *(Killed, KilledSingle, KilledWhileStarting, Stopped, Restarted),
    *(DiskFull, WriteFails, SyncFails, TornWrite, TornWriteSingle, DiskStalls, DiskStallsRetried),
    *(Damaged, ClockJumps),
    *(Delays, Cuts, Silence, Duplicates),
    *(NoMemory, IdleConnections, SlowReaders),
    *(ReplicaKilled, ReplicaStopped, DatabaseRestarted),
)
