"""Summaries: the contract of every store."""

import pytest

from safe_psrl_server.store import Append, EventStore, Order, Summary, SummaryQuery, key_of
from safe_psrl_server.store.summaries import QUARANTINED


def summary(agent: str, version: int = 1, condition: int = 1, ratio: float = -1.0, changed: int = 0) -> Summary:
    return Summary(agent, version, condition, ratio, changed, 1000 - changed, 10, f"{agent} {version}".encode())


async def filled(store: EventStore) -> list[Summary]:
    """Five agents, with summaries."""
    rows = [
        summary("cell/1", ratio=0.5, changed=5),
        summary("cell/2", condition=2, ratio=1.5, changed=4),
        summary("cell/10", ratio=0.95, changed=3),
        summary("player", ratio=-1.0, changed=2),
        summary("Z", condition=2, ratio=0.95, changed=1),
    ]
    await store.commit([Append(row.agent, 0, [b"event"]) for row in rows])
    await store.save_summaries(rows)
    return rows


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (SummaryQuery(9), ["Z", "cell/1", "cell/10", "cell/2", "player"]),
        (SummaryQuery(9, descending=True), ["player", "cell/2", "cell/10", "cell/1", "Z"]),
        (SummaryQuery(9, prefix="cell/1"), ["cell/1", "cell/10"]),
        (SummaryQuery(9, condition=2), ["Z", "cell/2"]),
        (SummaryQuery(9, min_cost_ratio=0.9), ["Z", "cell/10", "cell/2"]),
        (SummaryQuery(9, order=Order.COST_RATIO, descending=True), ["cell/2", "cell/10", "Z", "cell/1", "player"]),
        (SummaryQuery(9, order=Order.CHANGED), ["Z", "player", "cell/10", "cell/2", "cell/1"]),
        (SummaryQuery(9, order=Order.CREATED), ["cell/1", "cell/2", "cell/10", "player", "Z"]),
        (SummaryQuery(9, order=Order.EVENTS), ["Z", "cell/1", "cell/10", "cell/2", "player"]),
        (SummaryQuery(9, order=Order.SIZE, descending=True), ["player", "cell/2", "cell/10", "cell/1", "Z"]),
        (SummaryQuery(9, order=Order.CONDITION), ["cell/1", "cell/10", "player", "Z", "cell/2"]),
        (SummaryQuery(9, "cell/", 1, 0.6, Order.COST_RATIO), ["cell/10"]),
        (SummaryQuery(9, prefix="%"), []),
    ],
)
async def test_a_query_filters_and_orders_and_its_pages_are_the_whole(
    store: EventStore, query: SummaryQuery, names: list[str]
) -> None:
    rows = {row.agent: row for row in await filled(store)}
    assert await store.find_summaries(query) == [rows[name] for name in names]
    found, page = list[Summary](), query._replace(limit=2)
    while part := await store.find_summaries(page):
        found += part
        page = page._replace(after=key_of(part[-1], query.order))
    assert [row.agent for row in found] == names


async def test_totals_are_over_all_agents(store: EventStore) -> None:
    await filled(store)
    totals = await store.totals()
    assert (totals.agents, totals.table_entries, totals.conditions) == (5, 50, {1: 3, 2: 2})
    assert totals.cost_ratios == (0, 1, 0, 0, 2, 0, 0, 1, 0, 0)
    assert totals.cost_ratio_sum == pytest.approx(0.5 + 1.5 + 2 * 0.95)
    assert sorted(await store.summarised_agents()) == ["Z", "cell/1", "cell/10", "cell/2", "player"]
    assert {row.agent for row in await store.summaries_of(["Z", "nobody", "cell/1"])} == {"Z", "cell/1"}


async def test_reads_with_unsaved_summaries_are_those_after_they_are_saved(store: EventStore) -> None:
    """Also where one replaces, removes, adds or is older than what is stored."""
    rows = await filled(store)
    await store.commit([Append("cell/1", 1, [b"more"]), Append("new", 0, [b"event"])])
    await store.save_summaries([summary("gone", 0, QUARANTINED)])
    changed = [
        summary("cell/1", 2, condition=2, ratio=2.5, changed=9),
        summary("new", ratio=0.1, changed=8),
        summary("player", 0, QUARANTINED),
        summary("gone")._replace(payload=b""),
    ]
    unsaved = {row.agent: row for row in changed}
    queries = [
        SummaryQuery(limit, condition=condition, order=order, descending=descending)
        for limit in (1, 3, 9)
        for condition in (0, 2)
        for order in Order
        for descending in (False, True)
    ]
    found = [await store.find_summaries(query, unsaved) for query in queries]
    names = [row.agent for row in (*rows, *changed)]
    of, totals = sorted(await store.summaries_of(names, unsaved)), await store.totals(unsaved)
    known = sorted(await store.summarised_agents(unsaved))
    stale = await store.find_summaries(SummaryQuery(9), {"Z": summary("Z", 0)})
    assert next(row for row in stale if row.agent == "Z").version == 1
    await store.save_summaries(changed)
    assert found == [await store.find_summaries(query) for query in queries]
    assert of == sorted(await store.summaries_of(names))
    after = await store.totals()
    assert totals[:4] == after[:4]
    assert totals.cost_ratio_sum == pytest.approx(after.cost_ratio_sum)
    assert known == sorted(await store.summarised_agents())


async def test_a_summary_is_replaced_by_newer_ones_only(store: EventStore) -> None:
    await store.commit([Append("a", 0, [b"1", b"2", b"3"])])
    for version, kept in ((2, 2), (1, 2), (2, 2), (3, 3), (4, 3)):
        await store.save_summaries([summary("a", version)])
        assert [row.version for row in await store.find_summaries(SummaryQuery(9))] == [kept]
    await store.save_summaries([summary("a", 0, QUARANTINED)])
    assert [row.condition for row in await store.find_summaries(SummaryQuery(9))] == [QUARANTINED]


async def test_a_deleted_agent_has_no_summary(store: EventStore) -> None:
    await store.commit([Append("a", 0, [b"1", b"2"]), Append("b", 0, [b"1"])])
    await store.save_summaries([summary("a", 2), summary("b", 1)])
    await store.commit([Append("a", 2, (), deleted=True)])
    assert [row.agent for row in await store.find_summaries(SummaryQuery(9))] == ["b"]
    await store.save_summaries([summary("a", 2)])
    assert [row.agent for row in await store.find_summaries(SummaryQuery(9))] == ["b"], "one that is late is ignored"
    await store.commit([Append("a", 0, [b"1"])])
    await store.save_summaries([summary("a", 2)])
    await store.save_summaries([summary("a", 1)])
    assert [row.version for row in await store.find_summaries(SummaryQuery(9))] == [1, 1]


async def test_outdated_summaries_are_found(store: EventStore) -> None:
    await filled(store)
    assert await store.outdated_summaries() == {}
    await store.commit([Append("Z", 1, [b"more"]), Append("new", 0, [b"event"])])
    assert await store.outdated_summaries() == {"Z": 1, "new": 0}
    await store.save_summaries([summary("Z", 2), summary("new", 1)])
    assert await store.outdated_summaries() == {}
    await store.save_summaries([summary("gone", 0, QUARANTINED)])
    assert await store.outdated_summaries() == {"gone": 0}
    await store.save_summaries([summary("gone")._replace(payload=b""), summary("Z")._replace(payload=b"")])
    assert await store.outdated_summaries() == {}
    assert len(await store.summarised_agents()) == 6
