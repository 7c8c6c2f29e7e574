"""Events that grew old in no snapshot get into one, however often the server is started again."""

from collections.abc import Callable
from typing import Any

import pytest

from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.config import SnapshotPolicy
from safe_psrl_server.store.memory import MemoryStore

NewSpec = Callable[..., model_pb2.AgentSpec]
EVERY = SnapshotPolicy().every_seconds


async def kept(store: MemoryStore, agent: str) -> tuple[bool, int]:
    """Whether there is a snapshot, and how many events after it."""
    stream = await store.load(agent)
    return stream.snapshot is not None, len(stream.events)


@pytest.mark.parametrize(
    ("seconds", "is_old"), [(0, False), (EVERY - 1, False), (EVERY, True), (400 * 86_400, True), (-1, True)]
)
async def test_the_oldest_event_decides(bench: Any, make_spec: NewSpec, seconds: float, is_old: bool) -> None:
    """The youngest does not; one of the future is old, or a clock that was set back would put snapshots off for as long."""
    await bench.commands.create("a", make_spec())
    bench.clock.pass_seconds(seconds)
    await bench.commands.pause("a", "to add an event")
    await bench.host.save_old()
    assert await kept(bench.store, "a") == ((True, 0) if is_old else (False, 2))
    await bench.host.save_old()
    assert (await bench.host.verify("a")).same


async def test_a_server_that_never_lives_long_shortens_streams_too(make_bench: Any, make_spec: NewSpec) -> None:
    """Killed again and again: what was deleted in an earlier life leaves its name and no events."""
    store = MemoryStore()
    bench = await make_bench(store).open()
    await bench.commands.create("a", make_spec())
    await bench.commands.delete("a")
    for life in range(1, 4):
        bench = await make_bench(store).open()  # the one before is not closed: it was killed
        bench.clock.pass_seconds(life * EVERY / 3)
        await bench.host.save_old()
        assert await kept(store, "a") == ((True, 0) if life == 3 else (False, 2))
