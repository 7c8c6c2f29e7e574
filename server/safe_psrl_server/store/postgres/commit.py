"""Appends to PostgreSQL: what has queued up goes into one statement, which is one transaction and one round trip.

Compare-and-append is a conditional update of the stream's row: it moves only from the very event that the caller has seen.
Events are added for the streams that moved, and policies come and go with them. So a conflict fails its own append and no
other.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection

from safe_psrl_server.store.chain import BEGINNING, EventRow, Link

CHANGE_POLICIES: Final = """
    , dropped AS (
        DELETE FROM safe_psrl_policies AS policy
        USING unnest(%s::text[], %s::bigint[]) AS needless (agent, episode), moved
        WHERE policy.agent = moved.agent AND needless.agent = moved.agent AND needless.episode = policy.episode
    ),
    kept AS (
        INSERT INTO safe_psrl_policies (agent, episode, version, payload)
        SELECT policy.agent, policy.episode, policy.version, policy.payload
        FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %b::bytea[]) AS policy (agent, episode, version, payload)
        JOIN moved ON moved.agent = policy.agent
        ON CONFLICT (agent, episode) DO UPDATE SET version = excluded.version, payload = excluded.payload
    )
"""
ADD_EVENTS: Final = """
    INSERT INTO safe_psrl_events (agent, version, payload, link)
    SELECT event.agent, event.version, event.payload, event.link
    FROM unnest(%s::text[], %s::bigint[], %b::bytea[], %b::bytea[]) AS event (agent, version, payload, link)
    JOIN moved ON moved.agent = event.agent
    RETURNING agent
"""
# Rows are locked in the order of names, so that two replicas never wait for each other in a circle.
MOVE_STREAMS: Final = """
    WITH locked AS (SELECT agent FROM safe_psrl_streams WHERE agent = ANY(%s) ORDER BY agent FOR UPDATE),
    moved AS (
        UPDATE safe_psrl_streams AS stream SET version = wanted.version, link = wanted.link
        FROM unnest(%s::text[], %s::bigint[], %b::bytea[], %s::bigint[], %b::bytea[])
            AS wanted (agent, seen_version, seen_link, version, link)
        JOIN locked ON locked.agent = wanted.agent
        WHERE stream.agent = wanted.agent AND stream.version = wanted.seen_version AND stream.link = wanted.seen_link
        RETURNING stream.agent
    )
"""
BEGIN_STREAMS: Final = """
    WITH moved AS (
        INSERT INTO safe_psrl_streams (agent, version, link)
        SELECT wanted.agent, wanted.version, wanted.link
        FROM unnest(%s::text[], %s::bigint[], %b::bytea[]) AS wanted (agent, version, link) ORDER BY wanted.agent
        ON CONFLICT (agent) DO NOTHING
        RETURNING agent
    )
"""
HEADS: Final = "SELECT agent, version, link FROM safe_psrl_streams WHERE agent = ANY(%s)"


class Wanted(NamedTuple):
    """An append that is ready to be sent."""

    agent: str
    seen: Link
    rows: Sequence[EventRow]
    policies: Mapping[int, bytes]
    dropped: Collection[int]

    @property
    def head(self) -> Link:
        return Link(self.rows[-1].version, self.rows[-1].link)


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
    statement, values = BEGIN_STREAMS, [agents, *_heads(part)]
    if part[0].seen.version:
        seen = [entry.seen.version for entry in part], [entry.seen.link for entry in part]
        statement, values = MOVE_STREAMS, [agents, agents, *seen, *_heads(part)]
    if any(entry.policies or entry.dropped for entry in part):
        statement += CHANGE_POLICIES
        values += [*_dropped(part), *_policies(part)]
    added = await connection.execute(statement + ADD_EVENTS, [*values, *_events(part)])
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


def _policies(group: Sequence[Wanted]) -> tuple[list[str], list[int], list[int], list[bytes]]:
    rows = [(entry, episode) for entry in group for episode in entry.policies]
    return (
        [entry.agent for entry, _ in rows],
        [episode for _, episode in rows],
        [entry.head.version for entry, _ in rows],
        [entry.policies[episode] for entry, episode in rows],
    )


def _dropped(group: Sequence[Wanted]) -> tuple[list[str], list[int]]:
    rows = [(entry.agent, episode) for entry in group for episode in entry.dropped]
    return [agent for agent, _ in rows], [episode for _, episode in rows]
