"""An agent in memory: its record, and how much of it no snapshot includes yet."""

from dataclasses import dataclass

import structlog

from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.errors import DataLossError

log = structlog.get_logger()


@dataclass(eq=False)
class Agent:
    """An agent in memory. `record` is None while its stored data is damaged: the agent is quarantined."""

    name: str
    record: AgentRecord | None
    damage: str = ""
    snapshot_version: int = 0
    unsaved_steps: int = 0  # reported here since the last snapshot
    unsaved_since_micros: int | None = None  # time of the oldest event that no snapshot includes
    changed_here: bool = False  # since the last snapshot: this process takes the next one

    @property
    def exists(self) -> bool:
        return self.record is None or self.record.exists

    @property
    def intact(self) -> AgentRecord:
        """The record. Raises `DataLossError` if the agent is quarantined."""
        if self.record is None:
            raise DataLossError(
                f"the stored data of agent {self.name!r} is damaged: {self.damage}. Restore it from a backup", agent=self.name
            )
        return self.record

    def changed(self, time_micros: int, steps: int) -> None:
        """Events were applied that no snapshot includes."""
        self.changed_here = True
        self.unsaved_steps += steps
        if self.unsaved_since_micros is None:
            self.unsaved_since_micros = time_micros

    def quarantine(self, damage: str) -> None:
        """Serve nothing from it any more."""
        log.critical("agent quarantined", agent=self.name, damage=damage)
        self.record, self.damage = None, damage

    def saved(self, version: int) -> None:
        """A snapshot at `version` is stored."""
        self.snapshot_version = version
        if self.record is not None and version >= self.record.version:
            self.unsaved_since_micros, self.unsaved_steps, self.changed_here = None, 0, False
