"""The record of a demo, and what it is a record of."""

from dataclasses import dataclass, field
from typing import Final

METHOD: Final = "certified"
RECENT: Final = 1_000  # episodes of a mean: their costs vary by about 2, their mean by 0.06


@dataclass
class History:
    """What happened, episode by episode."""

    budget: float
    rewards: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    margins: list[tuple[int, float]] = field(default_factory=list)  # (episode, pessimism of its plan)
    killed_at: int = 0
