"""Streams in memory: for tests, and for testbeds that need no durability."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from safe_psrl_server.store.interface import Append, StoredStream, StoreUsage, StreamHead, VersionConflictError
from safe_psrl_server.store.summaries import (
    NOTHING_UNSAVED,
    FleetTotals,
    Summary,
    SummaryQuery,
    Unsaved,
    overlaid,
    overlaid_names,
    overlaid_totals,
    replaced,
    replaces,
    selected,
    wider,
)


@dataclass
class _Stream:
    version: int = 0
    snapshot_version: int = 0
    snapshot: bytes | None = None
    events: list[bytes] = field(default_factory=list)  # after the snapshot
    policies: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # by episode: version of its event, policy

    def policies_after(self, version: int) -> dict[int, bytes]:
        return {episode: policy for episode, (added, policy) in self.policies.items() if added > version}


class MemoryStore:
    """Lost when the process ends."""

    is_shared = False

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._summaries: dict[str, Summary] = {}

    async def open(self) -> None:
        pass

    async def heads(self, agents: Collection[str] | None = None) -> dict[str, StreamHead]:
        names = self._streams if agents is None else self._streams.keys() & agents
        return {name: StreamHead(self._streams[name].version, self._streams[name].snapshot_version) for name in names}

    async def load(self, agent: str) -> StoredStream:
        stream = self._streams.get(agent, _Stream())
        return StoredStream(stream.snapshot, list(stream.events), stream.version, stream.policies_after(0))

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        stream = self._streams.get(agent, _Stream())
        kept = after - stream.snapshot_version
        if not 0 <= kept <= len(stream.events):
            return None
        return StoredStream(None, list(stream.events[kept:]), stream.version, stream.policies_after(after))

    async def commit(self, appends: Sequence[Append]) -> set[str]:
        await asyncio.sleep(0)  # other tasks run during a commit, as with a disk
        conflicts = set[str]()
        for append in appends:
            if self._version(append.agent) != append.expected_version:
                conflicts.add(append.agent)
            elif append.deleted:
                self._streams.pop(append.agent, None)
                self._summaries.pop(append.agent, None)
            elif append.events:
                self._append(append)
        return conflicts

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        stream = self._streams.get(agent)
        if stream is not None and stream.snapshot_version < version <= stream.version:
            del stream.events[: version - stream.snapshot_version]
            stream.snapshot, stream.snapshot_version = snapshot, version

    async def restore(self, agent: str, stream: StoredStream) -> None:
        if self._version(agent):
            raise VersionConflictError(agent, 0, self._version(agent))
        start = stream.version - len(stream.events)
        policies = {episode: (stream.version, policy) for episode, policy in stream.policies.items()}
        self._streams[agent] = _Stream(stream.version, start, stream.snapshot, list(stream.events), policies)

    async def save_summaries(self, rows: Sequence[Summary]) -> None:
        for new in rows:
            stored = self._summaries.get(new.agent)
            if not new.payload:
                if new.agent not in self._streams:
                    self._summaries.pop(new.agent, None)
            elif replaces(new, stored.version if stored else None, self._version(new.agent)):
                self._summaries[new.agent] = new

    async def find_summaries(self, query: SummaryQuery, unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        return overlaid(query, selected(wider(query, unsaved), self._summaries.values()), unsaved)

    async def summaries_of(self, agents: Collection[str], unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        stored = [self._summaries[agent] for agent in agents if agent in self._summaries]
        return replaced(stored, {agent: unsaved[agent] for agent in agents if agent in unsaved})

    async def summarised_agents(self, unsaved: Unsaved = NOTHING_UNSAVED) -> list[str]:
        return overlaid_names(self._summaries, unsaved)

    async def totals(self, unsaved: Unsaved = NOTHING_UNSAVED) -> FleetTotals:
        return overlaid_totals((), (), {**self._summaries, **unsaved})

    async def outdated_summaries(self) -> dict[str, int]:
        summaries = {agent: summary.version for agent, summary in self._summaries.items()}
        streams = {agent: stream.version for agent, stream in self._streams.items()}
        names = streams.keys() | summaries.keys()
        return {name: summaries.get(name, 0) for name in names if summaries.get(name) != streams.get(name)}

    def forget(self, agent: str) -> None:
        pass

    def usage(self) -> StoreUsage | None:
        return None

    async def close(self) -> None:
        pass

    def _version(self, agent: str) -> int:
        return self._streams[agent].version if agent in self._streams else 0

    def _append(self, append: Append) -> None:
        stream = self._streams.setdefault(append.agent, _Stream())
        stream.events.extend(append.events)
        stream.version += len(append.events)
        for episode in append.dropped_policies:
            stream.policies.pop(episode, None)
        stream.policies.update({episode: (stream.version, policy) for episode, policy in append.policies.items()})
