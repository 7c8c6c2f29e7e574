"""The agents' gauges as text, ready to be put into a page.

An agent's lines are made again only if it changed since the scrape before, on the loop, where records do not change
meanwhile, and in slices between which calls get their turn: a scrape holds nobody up, however many agents there are.
"""

import asyncio
import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.host import AgentHost
from safe_psrl_server.hosted import Hosted
from safe_psrl_server.metrics.families import AGENT_FAMILIES, CONSTRAINT_FAMILIES, Shown
from safe_psrl_server.metrics.meter import PREFIX
from safe_psrl_server.statuses import record_status

SLICE_SECONDS: Final = 0.001
PAUSE_SECONDS: Final = 0.001  # not 0: the other threads, which read and write for calls, need the interpreter too
AGE: Final = f"{PREFIX}_snapshot_age_seconds"
AGE_TEXT: Final = (
    "Seconds since the oldest event that is newer than the stored snapshot; 0 if none is, no series before the first snapshot. "
    "Far above snapshots.every_seconds means that snapshots fail: see the log."
)
NAMES: Final = [f"{PREFIX}_{family.name}" for family in (*AGENT_FAMILIES, *CONSTRAINT_FAMILIES)]
HEADS: Final = [
    f"# HELP {name} {text}\n# TYPE {name} gauge\n"
    for name, text in zip(
        (*NAMES, AGE), (*(family.text for family in (*AGENT_FAMILIES, *CONSTRAINT_FAMILIES)), AGE_TEXT), strict=True
    )
]


@dataclass(frozen=True)
class _Lines:
    """An agent's lines as of one version: a part for each family, in their order."""

    record: AgentRecord
    version: int
    snapshot_version: int
    parts: Sequence[str]


@dataclass(frozen=True)
class Census:
    """What one look at the agents has shown."""

    agents: int
    quarantined: int
    without_series: int
    rows: Sequence[Sequence[str]]  # an agent's parts

    def text(self) -> Iterator[bytes]:
        """Every family with the lines of all agents, one after the other."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(HEADS)
        for head, column in zip(HEADS, columns, strict=True):
            yield "".join((head, *column)).encode()


class AgentSeries:
    """At most `most` agents have series: those that were created first, so that a new one takes nobody's place."""

    def __init__(self, host: AgentHost, most: int) -> None:
        self._host = host
        self._most = most
        self._known: dict[str, _Lines] = {}

    async def census(self) -> Census:
        agents = self._host.hosted()
        whole = [(agent, agent.record) for agent in agents if agent.record is not None]
        shown = self._first(whole)
        fresh: dict[str, _Lines] = {}
        rows: list[Sequence[str]] = []
        until = time.perf_counter() + SLICE_SECONDS
        for agent, record in shown:
            if time.perf_counter() > until:
                await asyncio.sleep(PAUSE_SECONDS)
                until = time.perf_counter() + SLICE_SECONDS
            if not record.exists:  # deleted meanwhile
                continue
            lines = fresh[agent.name] = self._lines(agent, record)
            rows.append((*lines.parts, self._age_line(agent, record)))
        self._known = fresh
        return Census(len(agents), len(agents) - len(whole), len(whole) - len(shown), rows)

    def _first(self, agents: list[tuple[Hosted, AgentRecord]]) -> list[tuple[Hosted, AgentRecord]]:
        if len(agents) <= self._most:
            return agents
        first = heapq.nsmallest(self._most, agents, key=lambda entry: (entry[1].created_micros, entry[1].name))
        return sorted(first, key=lambda entry: entry[1].name)

    def _lines(self, agent: Hosted, record: AgentRecord) -> _Lines:
        known = self._known.get(agent.name)
        if (
            known is not None
            and known.record is record
            and (known.version, known.snapshot_version) == (record.version, agent.snapshot_version)
        ):
            return known
        return _Lines(record, record.version, agent.snapshot_version, _parts(agent, record))

    def _age_line(self, agent: Hosted, record: AgentRecord) -> str:
        """The one value that changes while nothing happens."""
        if agent.snapshot_version == 0:
            return ""
        since = agent.unsaved_since_micros
        age = 0.0 if since is None else max(0, self._host.now_micros() - since) / 1e6
        return f"{AGE}{_labels(agent=record.name)} {_number(age)}\n"


def _parts(agent: Hosted, record: AgentRecord) -> list[str]:
    shown = Shown(agent, record, record_status(record))
    names, labels = iter(NAMES), _labels(agent=record.name)
    parts = []
    for family in AGENT_FAMILIES:
        name, value = next(names), family.value(shown)
        parts.append("" if value is None else f"{name}{labels} {_number(value)}\n")
    constraints = [(_labels(agent=record.name, constraint=c.name), c) for c in shown.status.constraints]
    for constraint_family in CONSTRAINT_FAMILIES:
        name = next(names)
        parts.append("".join(f"{name}{at} {_number(constraint_family.value(c))}\n" for at, c in constraints))
    return parts


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
