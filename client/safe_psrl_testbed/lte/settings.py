"""Size and load of an LTE cell."""

from dataclasses import dataclass
from typing import Final

BANDWIDTHS: Final = (6, 15, 25, 50)  # resource blocks: 1.4, 3, 5 and 10 MHz


@dataclass(frozen=True)
class CellSettings:
    """A cell that is short of capacity: background traffic with a guaranteed rate fills it, with random pauses."""

    ues: int = 4
    seed: int = 1
    epoch_ms: int = 50  # simulated time between decisions
    unit_packets: int = 4  # a media unit; the remote host sends one an epoch
    packet_bytes: int = 500  # with UDP and IP headers
    radius: float = 150.0  # metres around the station in which the UEs walk
    busy_seconds: float = 0.5  # mean length of the background's bursts
    idle_seconds: float = 0.06  # and of its pauses
    settle_seconds: float = 1.0  # until every UE is attached and the queues are stationary
    joining_ues: int = 0  # more UEs, whose streams have a guaranteed rate and no agent
    joining_epoch: int = 0  # when they attach

    @property
    def resource_blocks(self) -> int:
        """About the same number per UE, however many UEs there are."""
        return next(blocks for blocks in BANDWIDTHS if blocks >= 1.5 * self.ues)

    @property
    def unit_bytes(self) -> int:
        return self.unit_packets * self.packet_bytes

    @property
    def unit_rate(self) -> int:
        """Bits a second that bring one media unit an epoch: the rate that the fast service guarantees."""
        return self.unit_bytes * 8 * 1000 // self.epoch_ms

    @property
    def background_rate(self) -> int:
        """Bits a second: more than the cell can carry."""
        return 500_000 * self.resource_blocks
