"""What every event store promises, whatever it is made of."""

import asyncio

import pytest

from safe_psrl_server.store import (
    Append,
    EventStore,
    StoredStream,
    StoreError,
    StreamHead,
    VersionConflictError,
    open_store,
)
from tests.safe_psrl_server.store.appending import append


async def tail(store: EventStore, agent: str, after: int) -> list[bytes]:
    """The events after `after`, which are all kept."""
    loaded = await store.load_tail(agent, after)
    assert loaded is not None
    return loaded.events


async def test_an_unknown_agent_is_an_empty_stream(store: EventStore) -> None:
    assert await store.load("nobody") == StoredStream(None, [], 0)
    assert await store.heads() == {}


async def test_events_come_back_as_they_were_appended(store: EventStore) -> None:
    assert await append(store, "a", 0, [b"one", b"two"]) == 2
    assert await append(store, "a", 2, [b"", b"\x00\xff"]) == 4
    assert await store.load("a") == StoredStream(None, [b"one", b"two", b"", b"\x00\xff"], 4)


@pytest.mark.parametrize("expected", [0, 1, 3, 99])
async def test_an_append_elsewhere_than_at_the_end_changes_nothing(store: EventStore, expected: int) -> None:
    """Compare-and-append: somebody else came first, or the caller is ahead of what is stored."""
    await append(store, "a", 0, [b"one", b"two"])
    with pytest.raises(VersionConflictError, match=f"at version 2, expected {expected}"):
        await append(store, "a", expected, [b"three"])
    assert await store.load("a") == StoredStream(None, [b"one", b"two"], 2)
    assert await append(store, "a", 2, [b"three"]) == 3


async def test_a_conflict_of_a_new_agent_leaves_no_trace(store: EventStore) -> None:
    with pytest.raises(VersionConflictError):
        await append(store, "a", 1, [b"x"])
    assert await store.heads() == {}


async def test_an_empty_append_changes_nothing(store: EventStore) -> None:
    """It only compares; the agent does not come into being."""
    assert await append(store, "a", 0, []) == 0
    assert await store.heads() == {}
    await append(store, "a", 0, [b"one"])
    assert await append(store, "a", 1, []) == 1
    with pytest.raises(VersionConflictError):
        await append(store, "a", 0, [])


async def test_agents_are_listed_by_name(store: EventStore) -> None:
    names = ["b", "a/9", "a/10", "7", "Z"]
    for name in names:
        await append(store, name, 0, [b"x"])
    assert sorted(await store.heads()) == sorted(names)


async def test_streams_do_not_touch_each_other(store: EventStore) -> None:
    await append(store, "a", 0, [b"a1", b"a2"])
    await append(store, "b", 0, [b"b1"])
    assert (await store.load("b")) == StoredStream(None, [b"b1"], 1)
    assert (await store.load("a")).version == 2


async def test_a_snapshot_shortens_what_is_loaded(store: EventStore) -> None:
    await append(store, "a", 0, [b"1", b"2", b"3"])
    await store.save_snapshot("a", 2, b"two")
    assert await store.load("a") == StoredStream(b"two", [b"3"], 3)
    assert await append(store, "a", 3, [b"4"]) == 4
    assert await store.load("a") == StoredStream(b"two", [b"3", b"4"], 4)
    await store.save_snapshot("a", 4, b"four")
    assert await store.load("a") == StoredStream(b"four", [], 4)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_snapshot_that_is_not_newer_is_ignored(store: EventStore, version: int) -> None:
    """Two snapshots may overtake each other; the newest stays."""
    await append(store, "a", 0, [b"1", b"2", b"3"])
    await store.save_snapshot("a", 2, b"two")
    await store.save_snapshot("a", version, b"late")
    assert await store.load("a") == StoredStream(b"two", [b"3"], 3)


async def test_racing_appends_have_one_winner(store: EventStore) -> None:
    outcomes = await asyncio.gather(*(append(store, "a", 0, [b"%d" % i]) for i in range(50)), return_exceptions=True)
    winners = [i for i, outcome in enumerate(outcomes) if outcome == 1]
    assert len(winners) == 1
    assert sum(isinstance(outcome, VersionConflictError) for outcome in outcomes) == 49
    assert (await store.load("a")).events == [b"%d" % winners[0]]


async def test_many_appends_at_once_are_all_kept_in_order(store: EventStore) -> None:
    """Appends of many agents may share a commit; each gets its own answer, and each stream its own order."""

    async def fill(name: str) -> None:
        for version in range(20):
            assert await append(store, name, version, [b"%s %d" % (name.encode(), version)]) == version + 1

    names = [f"agent-{i:02d}" for i in range(30)]
    await asyncio.gather(*map(fill, names))
    assert sorted(await store.heads()) == names
    for name in names:
        assert (await store.load(name)).events == [b"%s %d" % (name.encode(), i) for i in range(20)]


async def test_the_tail_of_a_stream_is_what_came_after(store: EventStore) -> None:
    await append(store, "a", 0, [b"1", b"2", b"3"])
    assert await tail(store, "a", 0) == [b"1", b"2", b"3"]
    assert await tail(store, "a", 2) == [b"3"]
    assert await tail(store, "a", 3) == []
    assert await tail(store, "nobody", 0) == []


async def test_a_tail_that_is_not_all_kept_is_none(store: EventStore) -> None:
    """Dropped behind snapshots, or the reader is ahead of what is stored: it must read all."""
    await append(store, "a", 0, [b"1", b"2", b"3", b"4"])
    for version in (2, 3, 4):
        await store.save_snapshot("a", version, b"%d" % version)
    assert await store.load_tail("a", 0) is None
    assert await store.load_tail("a", 1) is None
    assert await store.load_tail("a", 9) is None
    await append(store, "a", 4, [b"5"])
    assert await tail(store, "a", 4) == [b"5"]


async def test_heads_have_versions_and_snapshots(store: EventStore) -> None:
    """Of all streams at once, or of some; unknown agents are left out."""
    await append(store, "a", 0, [b"1", b"2", b"3"])
    await append(store, "b", 0, [b"1"])
    await store.save_snapshot("a", 2, b"two")
    assert await store.heads() == {"a": StreamHead(3, 2), "b": StreamHead(1, 0)}
    assert await store.heads(["a", "nobody"]) == {"a": StreamHead(3, 2)}


async def test_a_commit_is_of_many_streams(store: EventStore) -> None:
    """Old and new streams, version checks and conflicts in one commit; a conflict affects no other append."""
    await append(store, "a", 0, [b"1"])
    await append(store, "b", 0, [b"1"])
    appends = [
        Append("a", 1, [b"2", b"3"]),
        Append("b", 7, [b"2"]),
        Append("c", 0, [b"1"], {1: b"policy"}),
        Append("d", 3, []),
        Append("e", 0, []),
    ]
    assert await store.commit(appends) == {"b", "d"}
    assert {name: head.version for name, head in (await store.heads()).items()} == {"a": 3, "b": 1, "c": 1}
    assert await store.load("c") == StoredStream(None, [b"1"], 1, {1: b"policy"})


async def test_a_commit_of_a_thousand_streams_is_kept(store: EventStore) -> None:
    """Statements have a limit of parameters; a commit does not."""
    names = [f"agent-{i:04d}" for i in range(1000)]
    assert await store.commit([Append(name, 0, [b"1", name.encode()]) for name in names]) == set()
    assert await store.commit([Append(name, 2, [b"3"]) for name in names]) == set()
    assert {head.version for head in (await store.heads()).values()} == {3}
    assert (await store.load("agent-0999")).events == [b"1", b"agent-0999", b"3"]


@pytest.mark.parametrize("with_snapshot", [True, False])
async def test_a_stream_can_be_stored_anew(store: EventStore, with_snapshot: bool) -> None:
    """As another store gave it, and appending and shortening go on from there."""
    stream = StoredStream(b"four", [b"5", b"6"], 6) if with_snapshot else StoredStream(None, [b"1", b"2"], 2)
    version = stream.version
    await store.restore("a", stream)
    assert await store.load("a") == stream
    assert await append(store, "a", version, [b"next"]) == version + 1
    await store.save_snapshot("a", version, b"then")
    assert await store.load("a") == StoredStream(b"then", [b"next"], version + 1)
    with pytest.raises(VersionConflictError, match=f"at version {version + 1}, expected 0"):
        await store.restore("a", stream)


async def test_a_stream_that_is_all_snapshot_can_be_stored_anew(store: EventStore) -> None:
    await store.restore("a", StoredStream(b"four", [], 4))
    assert await store.load("a") == StoredStream(b"four", [], 4)
    assert await append(store, "a", 4, [b"5"]) == 5
    assert await store.load("a") == StoredStream(b"four", [b"5"], 5)


@pytest.mark.parametrize("address", ["", "memory", "memory:x", "sqlite:", "sqlite", "postgres:x", "data", "postgresql:x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match=r"write sqlite:DIRECTORY, postgresql://USER@HOST/DATABASE or memory:$"):
        open_store(address)


# --- policies, which are kept beside a stream


async def test_policies_come_and_go_with_events(store: EventStore) -> None:
    await append(store, "a", 0, [b"1"], {1: b"one"})
    await append(store, "a", 1, [b"2"])
    await append(store, "a", 2, [b"3", b"4"], {2: b"two", 3: b"three"}, [1])
    assert await store.load("a") == StoredStream(None, [b"1", b"2", b"3", b"4"], 4, {2: b"two", 3: b"three"})
    await append(store, "a", 4, [b"5"], {}, [2, 3, 99])
    assert (await store.load("a")).policies == {}


async def test_policies_are_each_agents_own(store: EventStore) -> None:
    await asyncio.gather(*(append(store, name, 0, [b"1"], {1: name.encode()}) for name in "abcde"))
    await asyncio.gather(
        append(store, "a", 1, [b"2"], {}, [1]), append(store, "b", 1, [b"2"], {2: b"new"}), append(store, "c", 1, [b"2"])
    )
    kept = {name: (await store.load(name)).policies for name in "abcde"}
    assert kept == {"a": {}, "b": {1: b"b", 2: b"new"}, "c": {1: b"c"}, "d": {1: b"d"}, "e": {1: b"e"}}


async def test_a_conflict_leaves_policies_alone(store: EventStore) -> None:
    """Those that would have come do not, those that would have gone stay, also of a stream that begins."""
    await append(store, "a", 0, [b"1"], {1: b"one"})
    for expected in (0, 2):
        with pytest.raises(VersionConflictError):
            await append(store, "a", expected, [b"2"], {2: b"two"}, [1])
    with pytest.raises(VersionConflictError):
        await append(store, "b", 1, [b"1"], {1: b"one"})
    assert await store.load("a") == StoredStream(None, [b"1"], 1, {1: b"one"})
    assert list(await store.heads()) == ["a"]


async def test_a_tail_has_the_policies_that_came_with_it(store: EventStore) -> None:
    """Not those that its reader has already, nor those that have gone meanwhile."""
    await append(store, "a", 0, [b"1"], {1: b"one"})
    await append(store, "a", 1, [b"2"], {2: b"two"})
    await append(store, "a", 2, [b"3"])
    await append(store, "a", 3, [b"4"], {3: b"three"}, [2])
    assert await store.load_tail("a", 1) == StoredStream(None, [b"2", b"3", b"4"], 4, {3: b"three"})
    assert await store.load_tail("a", 0) == StoredStream(None, [b"1", b"2", b"3", b"4"], 4, {1: b"one", 3: b"three"})
    assert await store.load_tail("a", 4) == StoredStream(None, [], 4)


async def test_snapshots_leave_policies_alone(store: EventStore) -> None:
    """They are of episodes, not of events: dropping these does not drop them."""
    await append(store, "a", 0, [b"1", b"2", b"3"], {1: b"one"})
    for version in (1, 2, 3):
        await store.save_snapshot("a", version, b"%d" % version)
    assert await store.load("a") == StoredStream(b"3", [], 3, {1: b"one"})


async def test_a_restored_stream_has_its_policies(store: EventStore) -> None:
    """Under another name too, and they come and go as before."""
    await append(store, "a", 0, [b"1", b"2"], {1: b"one", 2: b"two"})
    await store.save_snapshot("a", 1, b"first")
    loaded = await store.load("a")
    await store.restore("b", loaded)
    assert await store.load("b") == loaded
    assert (await store.load_tail("b", 1) or loaded).policies == {1: b"one", 2: b"two"}
    await append(store, "b", 2, [b"3"], {2: b"anew"}, [1])
    assert (await store.load("b")).policies == {2: b"anew"}
    assert (await store.load("a")).policies == {1: b"one", 2: b"two"}
