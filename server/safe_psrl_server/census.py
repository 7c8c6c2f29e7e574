"""How many agents there are and what their tables take, kept up to date: creating one need not count the others."""

from safe_psrl_server.agent_record import AgentRecord


class Census:
    """Of all agents that exist. A damaged one exists, and its tables are not in memory."""

    def __init__(self) -> None:
        self._entries: dict[str, int] = {}
        self.table_entries = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def note(self, name: str, record: AgentRecord | None) -> None:
        """Told whenever an agent was read, and when it comes into being or goes."""
        self.table_entries -= self._entries.pop(name, 0)
        if record is None or record.exists:
            self._entries[name] = record.definition.table_entries if record is not None else 0
            self.table_entries += self._entries[name]
