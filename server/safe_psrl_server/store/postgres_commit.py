"""Appends to PostgreSQL: what has queued up goes into one statement, which is one transaction and one round trip.

Compare-and-append is a conditional update of the stream's row: it moves only from the very event that the caller has seen.
Events are added for the streams that moved. So a conflict fails its own append and no other.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection

from safe_psrl_server.store.chain import BEGINNING, EventRow, Link, chained

ADD_EVENTS: Final = """
    INSERT INTO safe_psrl_events (agent, version, payload, link)
    SELECT event.agent, event.version, event.payload, event.link
    FROM unnest(%s::text[], %s::bigint[], %b::bytea[], %b::bytea[]) AS event (agent, version, payload, link)
    JOIN moved ON moved.agent = event.agent
    RETURNING agent
"""
# Rows are locked in the order of names, so that two replicas never wait for each other in a circle.
APPEND: Final = f"""
    WITH locked AS (SELECT agent FROM safe_psrl_streams WHERE agent = ANY(%s) ORDER BY agent FOR UPDATE),
    moved AS (
        UPDATE safe_psrl_streams AS stream SET version = wanted.version, link = wanted.link
        FROM unnest(%s::text[], %s::bigint[], %b::bytea[], %s::bigint[], %b::bytea[])
            AS wanted (agent, seen_version, seen_link, version, link)
        JOIN locked ON locked.agent = wanted.agent
        WHERE stream.agent = wanted.agent AND stream.version = wanted.seen_version AND stream.link = wanted.seen_link
        RETURNING stream.agent
    )
    {ADD_EVENTS}
"""  # noqa: S608  # constants
BEGIN_STREAMS: Final = f"""
    WITH moved AS (
        INSERT INTO safe_psrl_streams (agent, version, link)
        SELECT wanted.agent, wanted.version, wanted.link
        FROM unnest(%s::text[], %s::bigint[], %b::bytea[]) AS wanted (agent, version, link) ORDER BY wanted.agent
        ON CONFLICT (agent) DO NOTHING
        RETURNING agent
    )
    {ADD_EVENTS}
"""  # noqa: S608  # constants
HEADS: Final = "SELECT agent, version, link FROM safe_psrl_streams WHERE agent = ANY(%s)"


class Wanted(NamedTuple):
    """An append that is ready to be sent."""

    agent: str
    seen: Link
    rows: Sequence[EventRow]

    @property
    def head(self) -> Link:
        return Link(self.rows[-1].version, self.rows[-1].link)


def wanted(agent: str, seen: Link, events: Sequence[bytes]) -> Wanted:
    return Wanted(agent, seen, chained(seen, events))


async def read_heads(connection: AsyncConnection[Any], agents: Sequence[str]) -> dict[str, Link]:
    """Of each of `agents`; of those that nothing is stored of, the beginning."""
    rows = await (await connection.execute(HEADS, (list(agents),))).fetchall()
    return dict.fromkeys(agents, BEGINNING) | {agent: Link(version, link) for agent, version, link in rows}


def parts(group: Sequence[Wanted]) -> list[list[Wanted]]:
    """What can be committed together: streams that go on, and streams that begin."""
    old, new = [entry for entry in group if entry.seen.version], [entry for entry in group if not entry.seen.version]
    return [part for part in (old, new) if part]


async def commit(connection: AsyncConnection[Any], part: Sequence[Wanted]) -> set[str]:
    """Append all that find their stream where they saw it; the names of those agents. At most one append for each agent.

    `connection` is in autocommit mode.
    """
    agents = [entry.agent for entry in part]
    if part[0].seen.version:
        seen = [entry.seen.version for entry in part], [entry.seen.link for entry in part]
        added = await connection.execute(APPEND, (agents, agents, *seen, *_heads(part), *_events(part)))
    else:
        added = await connection.execute(BEGIN_STREAMS, (agents, *_heads(part), *_events(part)))
    return {agent for (agent,) in await added.fetchall()}


def _heads(group: Sequence[Wanted]) -> tuple[list[int], list[bytes]]:
    return [entry.head.version for entry in group], [entry.head.link for entry in group]


def _events(group: Sequence[Wanted]) -> tuple[list[str], list[int], list[bytes], list[bytes]]:
    rows = [(entry.agent, row) for entry in group for row in entry.rows]
    return (
        [agent for agent, _ in rows],
        [row.version for _, row in rows],
        [row.payload for _, row in rows],
        [row.link for _, row in rows],
    )
