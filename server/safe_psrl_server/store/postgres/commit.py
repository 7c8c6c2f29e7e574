"""Many appends in one statement, which is one transaction and one round trip.

Compare-and-append is a conditional update of the stream's row. Events and policies are only written for streams whose row
was updated or created, so that a conflict fails its own append and no other. The head record is updated for these streams.

A commit that deletes streams is a transaction of several statements, which locks the rows first: the deletion must see a
snapshot that another replica was storing meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection

from safe_psrl_server.store.checksums import BEGINNING, EventRow, Link, head_digest

# Rows that exist are locked first, then rows are inserted, both in the order of names, and the row of the head record is
# locked last: so two replicas do not deadlock.
COMMIT: Final = """
    WITH wanted AS (
        SELECT * FROM unnest(%(agents)s::text[], %(seen_versions)s::bigint[], %(seen_links)b::bytea[],
                             %(versions)s::bigint[], %(links)b::bytea[], %(digests)s::bigint[], %(changes)s::bigint[])
            AS wanted (agent, seen_version, seen_link, version, link, digest, change)
    ),
    locked AS (
        SELECT agent FROM safe_psrl_streams WHERE agent = ANY(%(existing)s::text[]) ORDER BY agent FOR NO KEY UPDATE
    ),
    updated AS (
        UPDATE safe_psrl_streams AS stream SET version = wanted.version, link = wanted.link, digest = wanted.digest
        FROM wanted JOIN locked ON locked.agent = wanted.agent
        WHERE stream.agent = wanted.agent AND stream.version = wanted.seen_version AND stream.link = wanted.seen_link
        RETURNING stream.agent
    ),
    created AS (
        INSERT INTO safe_psrl_streams (agent, version, link, digest)
        SELECT agent, version, link, digest FROM wanted
        WHERE seen_version = 0 AND NOT EXISTS (SELECT 1 FROM locked WHERE locked.agent = wanted.agent) ORDER BY agent
        ON CONFLICT (agent) DO NOTHING
        RETURNING agent
    ),
    written AS (SELECT agent FROM updated UNION ALL SELECT agent FROM created),
    heads AS (
        UPDATE safe_psrl_heads AS head SET digest = head.digest # total.change
        FROM (SELECT bit_xor(wanted.change) AS change FROM wanted JOIN written ON written.agent = wanted.agent) AS total
        WHERE head.slot = %(slot)s AND total.change IS NOT NULL
    ),
    dropped AS (
        DELETE FROM safe_psrl_policies AS policy
        USING unnest(%(dropped_agents)s::text[], %(dropped_episodes)s::bigint[]) AS dropped (agent, episode), written
        WHERE policy.agent = written.agent AND dropped.agent = written.agent AND dropped.episode = policy.episode
    ),
    policies AS (
        INSERT INTO safe_psrl_policies (agent, episode, version, payload)
        SELECT policy.* FROM unnest(%(policy_agents)s::text[], %(policy_episodes)s::bigint[], %(policy_versions)s::bigint[],
                                    %(policies)b::bytea[]) AS policy (agent, episode, version, payload)
        JOIN written ON written.agent = policy.agent
        ON CONFLICT (agent, episode) DO UPDATE SET version = excluded.version, payload = excluded.payload
    ),
    events AS (
        INSERT INTO safe_psrl_events (agent, version, payload, link)
        SELECT event.* FROM unnest(%(event_agents)s::text[], %(event_versions)s::bigint[], %(payloads)b::bytea[],
                                   %(event_links)b::bytea[]) AS event (agent, version, payload, link)
        JOIN written ON written.agent = event.agent
    )
    SELECT agent FROM written
    UNION ALL
    SELECT checked.agent
    FROM unnest(%(checked_agents)s::text[], %(checked_versions)s::bigint[], %(checked_links)b::bytea[])
        AS checked (agent, version, link)
    LEFT JOIN safe_psrl_streams AS stream ON stream.agent = checked.agent
    WHERE coalesce(stream.version, 0) = checked.version AND (checked.link = '' OR checked.link = stream.link)
"""
LOCK: Final = "SELECT agent FROM safe_psrl_streams WHERE agent = ANY(%s::text[]) ORDER BY agent FOR UPDATE"
DELETE: Final = """
    WITH removed AS (
        DELETE FROM safe_psrl_streams AS stream
        USING unnest(%(agents)s::text[], %(versions)s::bigint[], %(links)b::bytea[], %(digests)s::bigint[])
            AS wanted (agent, version, link, digest)
        WHERE (stream.agent, stream.version, stream.link) = (wanted.agent, wanted.version, wanted.link)
        RETURNING stream.agent, wanted.digest
    ),
    events AS (DELETE FROM safe_psrl_events WHERE agent = ANY(ARRAY(SELECT agent FROM removed))),
    snapshots AS (DELETE FROM safe_psrl_snapshots WHERE agent = ANY(ARRAY(SELECT agent FROM removed))),
    policies AS (DELETE FROM safe_psrl_policies WHERE agent = ANY(ARRAY(SELECT agent FROM removed))),
    summaries AS (DELETE FROM safe_psrl_summaries WHERE agent = ANY(ARRAY(SELECT agent FROM removed))),
    heads AS (
        UPDATE safe_psrl_heads AS head SET digest = head.digest # total.change
        FROM (SELECT bit_xor(digest) AS change FROM removed) AS total
        WHERE head.slot = %(slot)s AND total.change IS NOT NULL
    )
    SELECT agent FROM removed
"""
HEADS: Final = "SELECT agent, version, link FROM safe_psrl_streams WHERE agent = ANY(%s)"

Database = AsyncConnection[Any]


class LinkedAppend(NamedTuple):
    """An append with its checksums."""

    agent: str
    seen: Link
    rows: Sequence[EventRow]
    policies: Mapping[int, bytes]
    dropped_policies: Collection[int]

    @property
    def head(self) -> Link:
        return Link(self.rows[-1].version, self.rows[-1].link)


async def read_links(db: Database, agents: Sequence[str]) -> dict[str, Link]:
    """The head of each stream; `BEGINNING` for those that do not exist."""
    rows = await (await db.execute(HEADS, (list(agents),))).fetchall()
    return dict.fromkeys(agents, BEGINNING) | {agent: Link(version, link) for agent, version, link in rows}


async def write_and_delete(
    db: Database, appends: Sequence[LinkedAppend], checks: Mapping[str, Link], deletions: Mapping[str, Link], slot: int
) -> set[str]:
    """Like `write`; also deletes streams. The result includes the agents of `deletions` whose stream existed."""
    values = {
        "slot": slot,
        "agents": list(deletions),
        "versions": [link.version for link in deletions.values()],
        "links": [link.link for link in deletions.values()],
        "digests": [head_digest(agent, link) for agent, link in deletions.items()],
    }
    async with db.transaction():
        await db.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        names = [*deletions, *(append.agent for append in appends)]
        locked = [agent for (agent,) in await (await db.execute(LOCK, (names,))).fetchall()]
        written = await write(db, appends, checks, slot, locked)
        return written | {agent for (agent,) in await (await db.execute(DELETE, values)).fetchall()}


async def write(
    db: Database,
    appends: Sequence[LinkedAppend],
    checks: Mapping[str, Link],
    slot: int,
    locked: Sequence[str] | None = None,
) -> set[str]:
    """The agents whose append was written, and those of `checks` whose stream exists. A check with an empty link compares only
    the version. `db` is in autocommit, or in a transaction that has `locked` the rows and locks no others."""
    events = [(append, row) for append in appends for row in append.rows]
    policies = [(append, episode) for append in appends for episode in append.policies]
    dropped = [(append.agent, episode) for append in appends for episode in append.dropped_policies]
    digests = [head_digest(append.agent, append.head) for append in appends]
    values = {
        "slot": slot,
        "agents": [append.agent for append in appends],
        "existing": [append.agent for append in appends] if locked is None else locked,
        "seen_versions": [append.seen.version for append in appends],
        "seen_links": [append.seen.link for append in appends],
        "versions": [append.head.version for append in appends],
        "links": [append.head.link for append in appends],
        "digests": digests,
        "changes": [digest ^ head_digest(append.agent, append.seen) for append, digest in zip(appends, digests, strict=True)],
        "event_agents": [append.agent for append, _ in events],
        "event_versions": [row.version for _, row in events],
        "payloads": [row.payload for _, row in events],
        "event_links": [row.link for _, row in events],
        "policy_agents": [append.agent for append, _ in policies],
        "policy_episodes": [episode for _, episode in policies],
        "policy_versions": [append.head.version for append, _ in policies],
        "policies": [append.policies[episode] for append, episode in policies],
        "dropped_agents": [agent for agent, _ in dropped],
        "dropped_episodes": [episode for _, episode in dropped],
        "checked_agents": list(checks),
        "checked_versions": [link.version for link in checks.values()],
        "checked_links": [link.link for link in checks.values()],
    }
    return {agent for (agent,) in await (await db.execute(COMMIT, values)).fetchall()}
