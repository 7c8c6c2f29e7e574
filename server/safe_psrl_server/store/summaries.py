"""A summary per agent: what listings and fleet metrics need of it, so that they need not load it.

Summaries are derived from the streams. They are written after the events that they describe, and carry the version of the
stream: one that is missing or of another version is outdated and is written again from the stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

QUARANTINED: Final = 3  # the condition of an agent whose data is damaged; its summary may describe any version
COST_RATIO_BUCKETS: Final = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)  # upper bounds
LAST_CHARACTER: Final = "\U0010ffff"


class Summary(NamedTuple):
    """One agent at `version`. Without a payload it stands for no agent, and removes what is stored."""

    agent: str
    version: int
    condition: int
    cost_ratio: float  # of the worst constraint; negative if it is not known
    changed_micros: int
    created_micros: int
    table_entries: int
    payload: bytes


COLUMNS: Final = Summary._fields
Unsaved = Mapping[str, Summary]  # by agent: summaries that a reader has, and the store may not have yet
NOTHING_UNSAVED: Final[Unsaved] = MappingProxyType({})
Key = tuple[float | str, str]  # the value of the column that orders, and the agent


class Order(StrEnum):
    """The column that orders a query; agents with equal values are in the order of their names."""

    AGENT = "agent"
    CONDITION = "condition"
    COST_RATIO = "cost_ratio"
    CHANGED = "changed_micros"
    CREATED = "created_micros"
    EVENTS = "version"
    SIZE = "table_entries"


class SummaryQuery(NamedTuple):
    """At most `limit` summaries behind the key `after`."""

    limit: int
    prefix: str = ""
    condition: int = 0  # any
    min_cost_ratio: float | None = None
    order: Order = Order.AGENT
    descending: bool = False
    after: Key | None = None


class FleetTotals(NamedTuple):
    """What all summaries amount to."""

    agents: int = 0
    table_entries: int = 0
    conditions: dict[int, int] = {}  # agents by condition  # noqa: RUF012  # never changed
    cost_ratios: tuple[int, ...] = (0,) * (len(COST_RATIO_BUCKETS) + 1)  # agents by bucket, the last one without a bound
    cost_ratio_sum: float = 0.0


def key_of(summary: Summary, order: Order) -> Key:
    return getattr(summary, order.value), summary.agent


def select(query: SummaryQuery, table: str, mark: str) -> tuple[str, list[object]]:
    """The statement for `query`, and its parameters."""
    conditions, values = list[str](), list[object]()
    if query.prefix:
        conditions.append(f"agent >= {mark} AND agent < {mark}")
        values += [query.prefix, query.prefix + LAST_CHARACTER]
    if query.condition:
        conditions.append(f"condition = {mark}")
        values.append(query.condition)
    if query.min_cost_ratio is not None:
        conditions.append(f"cost_ratio >= {mark}")
        values.append(query.min_cost_ratio)
    columns = ["agent"] if query.order is Order.AGENT else [query.order.value, "agent"]
    if query.after is not None:
        conditions.append(f"({', '.join(columns)}) {'<' if query.descending else '>'} ({', '.join([mark] * len(columns))})")
        values += query.after[-len(columns) :]
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    direction = "DESC" if query.descending else "ASC"
    order = ", ".join(f"{column} {direction}" for column in columns)
    statement = f"SELECT {', '.join(COLUMNS)} FROM {table} {where} ORDER BY {order} LIMIT {mark}"  # noqa: S608  # no values
    return statement, [*values, query.limit]


def selected(query: SummaryQuery, summaries: Iterable[Summary]) -> list[Summary]:
    """The same, of summaries in memory."""
    found = [
        one
        for one in summaries
        if one.agent.startswith(query.prefix)
        and query.condition in {0, one.condition}
        and (query.min_cost_ratio is None or one.cost_ratio >= query.min_cost_ratio)
    ]
    found.sort(key=lambda one: key_of(one, query.order), reverse=query.descending)
    if query.after is not None:
        after, sign = query.after, -1 if query.descending else 1
        found = [one for one in found if _compare(key_of(one, query.order), after) * sign > 0]
    return found[: query.limit]


def wider(query: SummaryQuery, unsaved: Unsaved) -> SummaryQuery:
    """A query whose stored summaries are enough for `overlaid`: any of them may be replaced by one that is not selected."""
    return query._replace(limit=query.limit + len(unsaved))


def overlaid(query: SummaryQuery, stored: Iterable[Summary], unsaved: Unsaved) -> list[Summary]:
    """What `query` selects when `unsaved` replaces what is stored, unless another replica stored a newer one."""
    return selected(query, replaced(stored, unsaved)) if unsaved else list(stored)


def replaced(stored: Iterable[Summary], unsaved: Unsaved) -> list[Summary]:
    kept = {one.agent: one for one in stored if not _hides(unsaved.get(one.agent), one)}
    return [*kept.values(), *(one for one in unsaved.values() if one.payload and one.agent not in kept)]


def overlaid_names(stored: Iterable[str], unsaved: Unsaved) -> list[str]:
    gone = {name for name, one in unsaved.items() if not one.payload}
    return list({*stored, *unsaved} - gone)


def overlaid_totals(rows: Iterable[Sequence[float]], stored: Iterable[Summary], unsaved: Unsaved) -> FleetTotals:
    """From the rows of `totals_statement`, when `unsaved` replaces `stored`, the stored summaries of the same agents."""
    out = [(one.condition, bucket_of(one.cost_ratio), -1, -one.table_entries, -one.cost_ratio) for one in stored]
    new = [one for one in unsaved.values() if one.payload]
    return totals_of(
        [*rows, *out, *((one.condition, bucket_of(one.cost_ratio), 1, one.table_entries, one.cost_ratio) for one in new)]
    )


def _hides(new: Summary | None, stored: Summary) -> bool:
    return new is not None and (not new.payload or new.condition == QUARANTINED or new.version >= stored.version)


def totals_statement(table: str) -> str:
    """Rows of condition, bucket of the cost ratio (-1 if it is not known), agents, table entries, sum of the cost ratios."""
    bounds = " ".join(f"WHEN cost_ratio <= {bound} THEN {i}" for i, bound in enumerate(COST_RATIO_BUCKETS))
    bucket = f"CASE WHEN cost_ratio < 0 THEN -1 {bounds} ELSE {len(COST_RATIO_BUCKETS)} END"
    return f"SELECT condition, {bucket} AS bucket, count(*), sum(table_entries), sum(cost_ratio) FROM {table} GROUP BY 1, 2"  # noqa: S608


def totals_of(rows: Iterable[Sequence[float]]) -> FleetTotals:
    """From the rows of `totals_statement`."""
    agents, entries, total, conditions = 0, 0, 0.0, dict[int, int]()
    buckets = [0] * (len(COST_RATIO_BUCKETS) + 1)
    for condition, bucket, count, part, ratios in rows:
        agents += int(count)
        entries += int(part)
        conditions[int(condition)] = conditions.get(int(condition), 0) + int(count)
        if bucket >= 0:
            buckets[int(bucket)] += int(count)
            total += ratios
    return FleetTotals(agents, entries, conditions, tuple(buckets), total)


def bucket_of(cost_ratio: float) -> int:
    if cost_ratio < 0:
        return -1
    return next((i for i, bound in enumerate(COST_RATIO_BUCKETS) if cost_ratio <= bound), len(COST_RATIO_BUCKETS))


def replaces(new: Summary, stored_version: int | None, stream_version: int) -> bool:
    """Whether `new` may be stored: it describes what the stream has been, and not less than the stored summary, unless that
    one is of a stream that was deleted."""
    if new.condition == QUARANTINED:
        return True
    if not 0 < new.version <= stream_version:
        return False
    return stored_version is None or stored_version <= new.version or stored_version > stream_version


def _compare(key: Key, other: Key) -> int:
    return (key > other) - (key < other)
