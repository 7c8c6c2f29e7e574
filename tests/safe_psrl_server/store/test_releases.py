"""Two releases on one database: what this one does with what a later one stores.

The later release is played by a store that appends what this one would not.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from safe_psrl_proto.v1 import control_pb2, events_pb2
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.errors import DataLossError
from safe_psrl_server.store import Append, open_store
from safe_psrl_server.store.interface import EventStore
from tests.safe_psrl_server.bench import Bench, NewBench

UNKNOWN_FIELD = b"\xc0\x3e\x2a"  # number 1000, a varint: 42
UNKNOWN_KIND = b"\xc2\x3e\x00"  # number 1000, an empty message
MOVED = control_pb2.Transition(state=0, action=1, next_state=2)


class Scene(NamedTuple):
    """A replica of this release with the agents "a", in an episode, and "b"; and the store of a later release."""

    bench: Bench
    later: EventStore
    database: str

    async def append(self, payload: bytes) -> None:
        version = (await self.later.load("a")).version
        assert not await self.later.commit([Append("a", version, [payload])])


@pytest.fixture
async def scene(database: str, new_bench: NewBench) -> AsyncIterator[Scene]:
    bench = await new_bench(database)
    await bench.create("a", "b")
    await bench.start()
    later = open_store(database)
    await later.open()
    yield Scene(bench, later, database)
    await later.close()


async def test_fields_of_events_that_are_unknown_change_nothing_and_are_kept(scene: Scene, new_bench: NewBench) -> None:
    bench, started = scene.bench, scene.bench.record().episodes[1].started.SerializeToString() + UNKNOWN_FIELD
    ended = events_pb2.Event(episode_ended=events_pb2.EpisodeEnded(episode=1, end=events_pb2.EPISODE_END_ABANDONED))
    following = events_pb2.Event(time_micros=2, episode_started=events_pb2.EpisodeStarted.FromString(started))
    following.episode_started.episode = 2
    await scene.append(ended.SerializeToString() + UNKNOWN_FIELD)
    await scene.append(following.SerializeToString())
    assert not (await bench.report(MOVED, episode=2, step=0)).duplicate
    assert bench.record().version == 5
    assert await bench.is_verified()
    stored = (await scene.later.load("a")).events
    assert [UNKNOWN_FIELD in payload for payload in stored] == [False, False, True, True, False], "as they were written"
    assert UNKNOWN_FIELD in snapshot_of(bench.record()).SerializeToString(), "of an episode, in a snapshot too"
    await bench.snapshot()
    again = await new_bench(scene.database)
    assert (await again.agents.record("a")).digest() == bench.record().digest()


async def test_an_event_of_an_unknown_kind_stops_its_agent_and_is_kept(scene: Scene, new_bench: NewBench) -> None:
    """This release cannot know what the agent is now; it serves the others, and the later release serves this one too."""
    await scene.append(UNKNOWN_KIND)
    for bench in (scene.bench, await new_bench(scene.database)):
        with pytest.raises(DataLossError, match="event 3 of a has an unknown kind"):
            await bench.agents.record("a")
        with pytest.raises(DataLossError):
            await bench.report(MOVED, episode=1, step=0)
        assert (await bench.agents.record("b")).exists
    assert (await scene.later.load("a")).events[2:] == [UNKNOWN_KIND], "nothing was written behind it"


async def test_a_snapshot_of_a_later_format_is_not_read_as_one_of_this(scene: Scene, new_bench: NewBench) -> None:
    later = events_pb2.Snapshot(format=2, version=2).SerializeToString()
    await scene.later.save_snapshot("a", 2, later)
    assert not (await scene.bench.report(MOVED, episode=1, step=0)).duplicate, "the agent is in memory"
    other = await new_bench(scene.database)
    with pytest.raises(DataLossError, match="the snapshot has format 2; this release reads 1"):
        await other.agents.record("a")
    assert (await scene.later.load("a")).snapshot == later
