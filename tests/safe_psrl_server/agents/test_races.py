"""Agents without a network: order, races and other writers."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2
from safe_psrl_server.agents import planner
from safe_psrl_server.rpc.control import ControlService
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import transition


async def start_slowly(bench: Bench, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A start whose plan is being made in a worker thread, until `go_on` is set."""
    planning, make_plan = threading.Event(), planner.make_plan

    def slow(*arguments: Any) -> planner.TimedPlan:
        planning.set()
        assert go_on.wait(30)
        return make_plan(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(planner, "is_short", lambda _learner: False)
        patch.setattr(planner, "make_plan", slow)
        waiting = bench.start()
        await asyncio.to_thread(planning.wait, 30)
    return waiting


async def test_racing_bare_clients_share_one_episode(bench: Bench) -> None:
    await bench.create()
    replies = await asyncio.gather(*(bench.act(0) for _ in range(20)))
    assert len(set(replies)) == 1
    assert bench.record("a").episode == 1


async def test_racing_repeats_are_applied_once(bench: Bench) -> None:
    await bench.create()
    starts = await asyncio.gather(*(bench.start(request_id="k") for _ in range(20)))
    assert {started.episode for started in starts} == {1}
    reports = await asyncio.gather(*(bench.report(transition(0, 1, 0), episode=1, step=0) for _ in range(20)))
    assert sum(not reported.duplicate for reported in reports) == 1
    assert bench.record("a").totals.transitions == 1


async def test_calls_for_an_agent_are_handled_in_their_order(new_bench: NewBench, tmp_path: Path) -> None:
    """Steps sent without waiting for replies find each other's outcome, though each waits for the disk."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create()
    calls = [bench.start(), *(bench.report(transition(0, 1, 0), episode=1, step=step) for step in range(3))]
    _, *reports = await asyncio.gather(*calls)
    assert [(reported.step, reported.duplicate) for reported in reports] == [(0, False), (1, False), (2, False)]
    assert [reported.done for reported in reports] == [False, False, True]


async def test_a_writer_elsewhere_is_noticed_and_decided_on_anew(new_bench: NewBench) -> None:
    """Two hosts on one store: whoever lost the race reads what the other wrote, and answers from that."""
    one = await new_bench()
    two = await new_bench(one.store)
    await one.create()
    await two.create()
    await one.start(request_id="k")
    assert (await two.start(request_id="k")).episode == 1
    await two.report(transition(0, 1, 0), episode=1, step=0)
    reported = await one.report(transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate
    assert (await one.store.load("a")).version == 3
    await one.report(transition(0, 1, 0), episode=1, step=1)
    assert one.record("a").totals.transitions == 2


async def test_agents_do_not_wait_for_each_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.create("a", "b")
    go_on = threading.Event()
    waiting = await start_slowly(bench, go_on, monkeypatch)
    acted = await bench.act(0, "b")
    assert acted.episode == 1
    assert not waiting.done()
    go_on.set()
    assert (await waiting).episode == 1


async def test_a_plan_made_for_an_outdated_record_is_made_again(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica started an episode while the plan was made: the next one is planned from what it wrote."""
    one = await new_bench()
    two = await new_bench(one.store)
    for bench in (one, two):
        await bench.create(max_open_episodes=2)
    go_on = threading.Event()
    waiting = await start_slowly(one, go_on, monkeypatch)
    assert (await two.start()).episode == 1
    go_on.set()
    assert (await waiting).episode == 2
    assert await one.is_verified()


async def test_a_caller_who_goes_away_leaves_no_half_of_a_call(new_bench: NewBench, tmp_path: Path) -> None:
    """A call is carried out as a whole or not at all: record and store agree, and a retry is recognised."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.begin()
    for passes in range(6):
        waiting = bench.report(transition(0, 1, 0), episode=1, step=0)
        for _ in range(passes):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    await bench.report(transition(0, 1, 0), episode=1, step=0)
    reported = await bench.report(transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate
    assert bench.record("a").version == (await bench.store.load("a")).version == 3
    assert await bench.is_verified()


async def test_a_stream_that_is_dropped_leaves_no_task_behind(bench: Bench) -> None:
    """However full its backlog was."""
    await bench.begin()
    service = ControlService(bench.commands, 2)

    async def requests() -> AsyncIterator[control_pb2.StepStreamRequest]:
        while True:
            step = control_pb2.StepRequest(agent="a", episode=1, step=0, transition=transition(0, 1, 0))
            yield control_pb2.StepStreamRequest(step=step)

    before = asyncio.all_tasks()
    stream = service.StepStream(requests(), None)
    assert (await anext(stream)).step.step == 0
    for _ in range(20):
        await asyncio.sleep(0)
    await stream.aclose()
    for _ in range(50):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before
