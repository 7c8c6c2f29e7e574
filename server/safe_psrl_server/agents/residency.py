"""Which agents stay in memory: beyond a number of agents or bytes, the least recently used are evicted.

An agent can be evicted whenever no call is under way: its whole state is stored, open episodes included.
"""

from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.config import Limits

BASE_BYTES: Final = 60_000  # of an agent without its tables and its history


class Named(Protocol):
    """What stays in memory."""

    name: str
    record: AgentRecord | None


Member = TypeVar("Member", bound=Named)


class ResidentSet(Generic[Member]):
    """Members by name, the least recently used first."""

    def __init__(self, limits: Limits, on_leave: Callable[[Member], None]) -> None:
        self.is_busy: Callable[[str], bool] = lambda _name: False  # whether calls of an agent are under way
        self.evictions = 0
        self.bytes = 0  # estimated
        self._most, self._most_bytes = limits.max_resident_agents, limits.max_resident_bytes
        self._on_leave = on_leave
        self._members: dict[str, Member] = {}
        self._bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Callable from any thread."""
        return iter(list(self._members.values()))

    def find(self, name: str) -> Member | None:
        """Without being a use of it."""
        return self._members.get(name)

    def use(self, name: str) -> Member | None:
        member = self._members.pop(name, None)
        if member is not None:
            self._members[name] = member
        return member

    def add(self, member: Member) -> Member:
        """The member of that name, which is `member` unless there was one; others may be evicted."""
        present = self._members.setdefault(member.name, member)
        self.weigh(present)
        self.trim(present.name)
        return present

    def weigh(self, member: Member) -> None:
        """Estimate a member's memory again: it was created."""
        if self._members.get(member.name) is member:
            self.bytes -= self._bytes.get(member.name, 0)
            self._bytes[member.name] = estimated_bytes(member.record)
            self.bytes += self._bytes[member.name]

    def remove(self, name: str) -> Member | None:
        member = self._members.pop(name, None)
        self.bytes -= self._bytes.pop(name, 0)
        return member

    def trim(self, kept: str = "") -> None:
        """Evict members until the limits hold. Those with calls under way stay, and so does `kept`."""
        count, size, leaving = len(self._members), self.bytes, list[Member]()
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
    """Memory of a record, from the sizes of its tables; its history counts as if it were full, which it will be."""
    return BASE_BYTES + (record.table_bytes + record.history_bytes if record is not None and record.exists else 0)
