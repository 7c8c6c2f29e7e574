"""All faults, in the order of the table."""

from typing import Final

from faults.clocks import ClockJumps
from faults.damages import Damaged
from faults.disks import DiskFull, SyncFails, SyncFailsAlone, TornWrite, TornWriteAlone, WriteFails
from faults.fault import Fault
from faults.networks import Cuts, Delays, Duplicates, Silence
from faults.processes import Killed, KilledAlone, KilledWhileStarting, Restarted, Stopped
from faults.replicas import DatabaseRestarted, ReplicaKilled, ReplicaStopped
from faults.resources import IdleConnections, NoMemory, SlowReaders

FAULTS: Final[tuple[type[Fault], ...]] = (
    Killed,
    KilledAlone,
    KilledWhileStarting,
    Stopped,
    Restarted,
    DiskFull,
    WriteFails,
    SyncFails,
    SyncFailsAlone,
    TornWrite,
    TornWriteAlone,
    Damaged,
    ClockJumps,
    Delays,
    Cuts,
    Silence,
    Duplicates,
    NoMemory,
    IdleConnections,
    SlowReaders,
    ReplicaKilled,
    ReplicaStopped,
    DatabaseRestarted,
)
