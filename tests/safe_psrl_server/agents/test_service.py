"""Agents without a network: refused calls, a failing store, defects, deletion."""

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents import decisions
from safe_psrl_server.errors import (
    DeadlineError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from safe_psrl_server.store import StoreFailedError
from safe_psrl_server.store.sqlite import streams
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import make_spec, transition


async def test_nothing_is_served_before_recovery_and_after_closing() -> None:
    """UNAVAILABLE, which clients retry; never an empty answer."""
    bench = Bench()
    for call in (bench.create, bench.start, bench.act):
        with pytest.raises(UnavailableError):
            await call()
    await bench.open()
    await bench.create()
    await bench.close()
    with pytest.raises(UnavailableError):
        await bench.start()


async def test_a_failed_commit_answers_unavailable_and_changes_no_record(
    new_bench: NewBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Persist, then acknowledge: what was not stored is not in the record either, and no later call gets through."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.begin()
    version = bench.record("a").version

    def fail(*_arguments: object, **_options: object) -> set[str]:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(streams, "append", fail)
        calls = [bench.report(transition(0, 1, 0)) for _ in range(3)]
        for call in calls:
            with pytest.raises(UnavailableError, match="the disk is gone"):
                await call
    with pytest.raises(UnavailableError, match="the disk is gone"):
        await bench.report(transition(0, 1, 0))
    assert bench.record("a").version == version
    assert bench.record("a").totals.transitions == 0
    assert isinstance(bench.agents.runtime.failure, StoreFailedError)
    await bench.close()
    again = await new_bench(f"sqlite:{tmp_path}")
    assert (await again.agents.record("a")).version == version


async def test_a_decision_that_fails_unexpectedly_fails_its_own_call_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on, for the same agent, too."""
    await bench.begin()

    def fail(*_arguments: object, **_options: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(decisions, "report", fail)
        with pytest.raises(MemoryError):
            await bench.report(transition(0, 1, 0))
    reported = await asyncio.wait_for(bench.report(transition(0, 1, 0)), 10)
    assert (reported.step, reported.duplicate) == (0, False)


async def test_calls_that_wait_together_share_a_commit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: at most one call of each agent; a refused one keeps no other from being stored."""
    sizes, commit = list[int](), bench.store.commit

    async def observed(appends: Any) -> set[str]:
        sizes.append(len(appends))
        return await commit(appends)

    names = [f"agent-{i}" for i in range(20)]
    for name in names:
        await bench.create(name)
        await bench.start(name)
    monkeypatch.setattr(bench.store, "commit", observed)
    moves = [(name, step) for step in range(2) for name in names]
    paths = [transition(0, 99 if number == 3 else 1, 0) for number in range(40)]
    calls = [bench.report(moved, name, True, episode=1, step=step) for (name, step), moved in zip(moves, paths, strict=True)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [isinstance(outcome, ServiceError) for outcome in outcomes]
    assert [i for i, is_refused in enumerate(refused) if is_refused] == [3, 23]  # its second step has a gap before it
    assert sizes == [19, 19]


async def test_a_call_that_takes_too_long_is_told_so_and_goes_on(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEADLINE_EXCEEDED after limits.call_seconds; the repetition is a duplicate."""
    bench = await new_bench(call_seconds=1)
    await bench.begin()
    commit, may_end = bench.store.commit, asyncio.Event()

    async def stalled(appends: Any) -> set[str]:
        await may_end.wait()
        return await commit(appends)

    monkeypatch.setattr(bench.store, "commit", stalled)
    with pytest.raises(DeadlineError, match=r"not done within 1 s"):
        await bench.report(transition(0, 1, 0), episode=1, step=0)
    may_end.set()
    reported = await bench.report(transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate


async def test_a_refused_call_changes_nothing(bench: Bench) -> None:
    await bench.begin()
    stored = await bench.store.load("a")
    calls: list[Any] = [
        bench.start(),
        bench.report(transition(0, 9, 0)),
        bench.report(transition(0, 1, 0), episode=1, step=2),
        bench.report(transition(0, 1, 0), episode=9, step=0),
        bench.end(9),
        bench.administration.create("a", make_spec(seed=5)),
        bench.administration.create("b", model_pb2.AgentSpec()),
    ]
    for call in calls:
        with pytest.raises(ServiceError):
            await call
    assert await bench.store.load("a") == stored
    assert list(await bench.store.heads()) == ["a"]
    with pytest.raises(NotFoundError):
        await bench.agents.record("b")


async def test_a_defect_in_the_loop_fails_every_call_and_stops_the_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller waits for ever, and closing does not hang."""
    await bench.begin()

    async def broken(_appends: object) -> set[str]:
        raise MemoryError

    monkeypatch.setattr(bench.store, "commit", broken)
    calls = [bench.report(transition(0, 1, 0), episode=1, step=step) for step in range(3)]
    for call in calls:
        with pytest.raises(UnavailableError, match="MemoryError"):
            await asyncio.wait_for(call, 10)
    assert bench.agents.runtime.failed.is_set()
    await asyncio.wait_for(bench.close(), 10)


class Failing(list[Transition]):
    """Memory runs out while steps are added to it."""

    def __iadd__(self, _steps: object) -> Any:
        raise MemoryError


async def test_a_transition_that_could_not_be_applied_is_read_again(bench: Bench) -> None:
    """What is stored but could not be applied, for want of memory say: never half of it is served."""
    await bench.begin()
    await bench.report(transition(0, 1, 0), episode=1, step=0)
    episode = bench.record("a").episodes[1]
    episode.transitions = Failing(episode.transitions)
    with pytest.raises(UnavailableError, match="try again"):
        await bench.report(transition(0, 1, 0), episode=1, step=1)
    again = await bench.report(transition(0, 1, 0), episode=1, step=1)
    assert again.duplicate
    last = await bench.report(transition(0, 1, 0), episode=1, step=2)
    assert (last.duplicate, last.done) == (False, True)
    record = bench.record("a")
    assert record.totals.transitions == record.state.transition_counts.sum() == 3
    assert await bench.is_verified()


async def test_the_tables_of_a_deleted_agent_are_let_go(bench: Bench) -> None:
    """Or whoever creates and deletes agents under ever new names would fill the memory."""
    await bench.begin()
    record = weakref.ref(bench.record("a"))
    await bench.administration.delete("a")
    await bench.agents.runtime.finish()
    gc.collect()
    assert record() is None
    with pytest.raises(NotFoundError):
        await bench.agents.record("a")


async def test_the_name_can_be_used_again(bench: Bench) -> None:
    await bench.create()
    await bench.administration.delete("a")
    record, existed = await bench.administration.create("a", make_spec(seed=1))
    assert not existed
    assert record.version == 1
    assert await bench.is_verified()


async def test_a_snapshot_of_a_deleted_agent_is_not_stored_for_its_successor(bench: Bench) -> None:
    """The snapshot was due when the name was deleted and created again."""
    await bench.begin()
    old = bench.agents.registry.resident("a")
    assert old is not None
    await bench.administration.delete("a")
    await bench.begin()
    await bench.agents.compactor.save(old)
    assert (await bench.store.heads())["a"].snapshot_version == 0
    assert await bench.is_verified()
