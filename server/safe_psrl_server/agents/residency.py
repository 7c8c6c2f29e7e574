"""Agents in memory: what is kept in addition to a record, and which agents stay.

Beyond a number of agents or bytes, the least recently used are evicted. An agent can be evicted whenever no call is under way:
its whole state is stored, open episodes included.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from safe_psrl_server.agents.history import most_bytes
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import DataLossError

BASE_BYTES: Final = 60_000  # memory of an agent without its tables and its history
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
        """Note that events were applied that no snapshot includes yet."""
        self.changed_here = True
        self.unsaved_steps += steps
        if self.unsaved_since_micros is None:
            self.unsaved_since_micros = time_micros

    def quarantine(self, damage: str) -> None:
        """Stop serving the agent."""
        log.critical("agent quarantined", agent=self.name, damage=damage)
        self.record, self.damage = None, damage

    def saved(self, version: int) -> None:
        """A snapshot at `version` is stored."""
        self.snapshot_version = version
        if self.record is not None and version >= self.record.version:
            self.unsaved_since_micros, self.unsaved_steps, self.changed_here = None, 0, False


class ResidentSet:
    """Agents by name, the least recently used first."""

    def __init__(self, limits: Limits, on_leave: Callable[[Agent], None]) -> None:
        self.is_busy: Callable[[str], bool] = lambda _name: False  # whether calls of an agent are under way
        self.evictions = 0
        self.bytes = 0  # estimated
        self._most, self._most_bytes = limits.max_resident_agents, limits.max_resident_bytes
        self._on_leave = on_leave
        self._members: dict[str, Agent] = {}
        self._bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Agent]:
        """Callable from any thread."""
        return iter(list(self._members.values()))

    def find(self, name: str) -> Agent | None:
        """The member of that name, or None. Does not count as a use."""
        return self._members.get(name)

    def use(self, name: str) -> Agent | None:
        member = self._members.pop(name, None)
        if member is not None:
            self._members[name] = member
        return member

    def add(self, member: Agent) -> Agent:
        """Add `member`, unless its name has a member already. Returns the member of that name. May evict others."""
        present = self._members.setdefault(member.name, member)
        self.weigh(present)
        self.trim(present.name)
        return present

    def weigh(self, member: Agent) -> None:
        """Estimate a member's memory again, after its agent was created."""
        if self._members.get(member.name) is member:
            self.bytes -= self._bytes.get(member.name, 0)
            self._bytes[member.name] = estimated_bytes(member.record)
            self.bytes += self._bytes[member.name]

    def remove(self, name: str) -> Agent | None:
        member = self._members.pop(name, None)
        self.bytes -= self._bytes.pop(name, 0)
        return member

    def trim(self, kept: str = "") -> None:
        """Evict members until the limits hold. Those with calls under way stay, and so does `kept`."""
        count, size, leaving = len(self._members), self.bytes, list[Agent]()
        for name, member in self._members.items():
            if count <= self._most and (not self._most_bytes or size <= self._most_bytes):
                break
            if name != kept and not self.is_busy(name):
                leaving.append(member)
                count, size = count - 1, size - self._bytes[name]
        for member in leaving:
            self._on_leave(member)
            self.remove(member.name)
            self.evictions += 1


def estimated_bytes(record: AgentRecord | None) -> int:
    """The memory of a record, from the sizes of its tables. The history counts as full, because it will be."""
    if record is None or not record.exists:
        return BASE_BYTES
    return BASE_BYTES + record.table_bytes + most_bytes(record.definition.spec.num_constraints)
