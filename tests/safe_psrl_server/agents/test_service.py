"""The agents without a network: time-outs, several open episodes, races, other writers, a failing store."""

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents import decisions, planner, runtime
from safe_psrl_server.errors import (
    DataLossError,
    DeadlineError,
    FailedPreconditionError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from safe_psrl_server.rpc.control import ControlService
from safe_psrl_server.store import Append, DamagedStreamError, StoreFailedError, StreamHead
from safe_psrl_server.store.memory import MemoryStore
from safe_psrl_server.store.sqlite import streams
from safe_psrl_server.store.sqlite.store import SqliteStore
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.store.appending import execute


async def start_slowly(bench: Any, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A start whose plan is being made in a worker thread, until `go_on` is set."""
    planning, make_plan = threading.Event(), planner.make_plan

    def slow(*arguments: Any) -> planner.TimedPlan:
        planning.set()
        assert go_on.wait(30)
        return make_plan(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "is_short", lambda _learner: False)
        patch.setattr(planner, "make_plan", slow)
        waiting = bench.start()
        await asyncio.to_thread(planning.wait, 30)
    return waiting


# --- time


async def test_an_inactive_episode_gives_way(bench: Any) -> None:
    """After the agent's time-out the next start abandons it; what it reported stays."""
    await bench.begin(episode_timeout_seconds=60)
    bench.clock.pass_seconds(59)
    await bench.report(transition(0, 1, 0))
    bench.clock.pass_seconds(59.999999)
    with pytest.raises(FailedPreconditionError, match="episode 1 is open at step 1"):
        await bench.start()
    bench.clock.pass_seconds(0.000001)
    assert (await bench.start()).episode == 2
    record = bench.record("a")
    assert record.episodes[1].end == events_pb2.EPISODE_END_ABANDONED
    assert record.state.transition_counts.sum() == 1


async def test_asking_for_actions_does_not_give_way(bench: Any) -> None:
    """A bare client goes on with the open episode however long it took; only StartEpisode takes its place."""
    await bench.begin(episode_timeout_seconds=60)
    bench.clock.pass_seconds(1000)
    assert (await bench.act(0)).episode == 1


async def test_the_time_out_is_the_servers_unless_the_agent_has_one(new_bench: NewBench) -> None:
    """The default comes from the limits and is written into the definition, so that a later default changes nothing."""
    bench = await new_bench(episode_timeout_seconds=5)
    await bench.create()
    assert bench.record("a").definition.message.episode_timeout_seconds == 5
    await bench.start()
    bench.clock.pass_seconds(5)
    assert (await bench.start()).episode == 2


# --- several open episodes


async def test_as_many_episodes_as_allowed_may_be_open(bench: Any) -> None:
    """Each has its own sample and steps; which one is meant must then be said; one more is refused."""
    await bench.create(max_open_episodes=2)
    first, second = await bench.start(), await bench.start()
    assert (first.episode, second.episode) == (1, 2)
    with pytest.raises(FailedPreconditionError) as caught:
        await bench.start()
    assert (caught.value.reason, caught.value.metadata["open_episode"]) == ("EPISODE_OPEN", "1")
    for call in (bench.act(0), bench.report(transition(0, 1, 0))):
        with pytest.raises(FailedPreconditionError) as caught:
            await call
        assert caught.value.reason == "EPISODE_AMBIGUOUS"
    for episode in (2, 1):
        _, reported = await bench.report(transition(0, 1, 2), episode=episode, step=0)
        assert (reported.episode.number, reported.step) == (episode, 0)
    assert (await bench.act(2, episode=2)).step == 1
    await bench.end(1)
    assert (await bench.act(2)).episode == 2
    assert (await bench.start()).episode == 3


async def test_only_inactive_ones_of_several_give_way(bench: Any) -> None:
    await bench.begin(max_open_episodes=2, episode_timeout_seconds=60)
    await bench.start()
    bench.clock.pass_seconds(60)
    await bench.report(transition(0, 1, 0), episode=1, step=0)
    assert (await bench.start()).episode == 3
    assert [episode.number for episode in bench.record("a").open_episodes] == [1, 3]


async def test_abandoning_takes_all_that_are_open(bench: Any) -> None:
    """As an environment wants that was restarted and knows of none."""
    await bench.begin(max_open_episodes=2)
    await bench.start()
    await bench.start(abandon_open=True)
    assert [episode.number for episode in bench.record("a").open_episodes] == [3]


# --- order, races, other writers


async def test_racing_bare_clients_share_one_episode(bench: Any) -> None:
    await bench.create()
    replies = await asyncio.gather(*(bench.act(0) for _ in range(20)))
    assert len(set(replies)) == 1
    assert bench.record("a").episode == 1


async def test_racing_repeats_are_applied_once(bench: Any) -> None:
    await bench.create()
    starts = await asyncio.gather(*(bench.start(request_id="k") for _ in range(20)))
    assert {started.episode for started in starts} == {1}
    reports = await asyncio.gather(*(bench.report(transition(0, 1, 0), episode=1, step=0) for _ in range(20)))
    assert sum(not reported.duplicate for _, reported in reports) == 1
    assert bench.record("a").totals.transitions == 1


async def test_calls_for_an_agent_are_handled_in_their_order(new_bench: NewBench, tmp_path: Path) -> None:
    """Steps sent without waiting for replies find each other's outcome, though each waits for the disk."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create()
    calls = [bench.start(), *(bench.report(transition(0, 1, 0), episode=1, step=step) for step in range(3))]
    _, *reports = await asyncio.gather(*calls)
    assert [(reported.step, reported.duplicate, reported.done) for _, reported in reports] == [
        (0, False, False),
        (1, False, False),
        (2, False, True),
    ]


async def test_a_writer_elsewhere_is_noticed_and_decided_on_anew(new_bench: NewBench) -> None:
    """Two hosts on one store: whoever lost the race reads what the other wrote, and answers from that."""
    store = MemoryStore()
    one, two = await new_bench(store), await new_bench(store)
    await one.create()
    await two.create()
    await one.start(request_id="k")
    assert (await two.start(request_id="k")).episode == 1
    await two.report(transition(0, 1, 0), episode=1, step=0)
    _, reported = await one.report(transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate
    assert (await store.load("a")).version == 3
    await one.report(transition(0, 1, 0), episode=1, step=1)
    assert one.record("a").totals.transitions == 2


async def test_agents_do_not_wait_for_each_other(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.create("a", "b")
    go_on = threading.Event()
    waiting = await start_slowly(bench, go_on, monkeypatch)
    acted = await bench.commands.get_action(control_pb2.GetActionRequest(agent="b", state=0))
    assert acted.episode == 1
    assert not waiting.done()
    go_on.set()
    assert (await waiting).episode == 1


async def test_a_plan_made_for_an_outdated_record_is_made_again(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica started an episode while the plan was made: the next one is planned from what it wrote."""
    store = MemoryStore()
    one, two = await new_bench(store), await new_bench(store)
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
    _, reported = await bench.report(transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate
    assert bench.record("a").version == (await bench.store.load("a")).version == 3
    assert await bench.is_verified()


async def test_a_stream_that_is_dropped_leaves_no_task_behind(bench: Any) -> None:
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


# --- starting, stopping, failing


async def test_nothing_is_served_before_recovery_and_after_closing() -> None:
    """UNAVAILABLE, which clients retry; never an empty answer."""
    bench = Bench(MemoryStore())
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

    def fail(*_arguments: object) -> set[str]:
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


async def test_a_decision_that_fails_unexpectedly_fails_its_own_call_only(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on, for the same agent, too."""
    await bench.begin()

    def fail(*_arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(decisions, "report", fail)
        with pytest.raises(MemoryError):
            await bench.report(transition(0, 1, 0))
    _, reported = await asyncio.wait_for(bench.report(transition(0, 1, 0)), 10)
    assert (reported.step, reported.duplicate) == (0, False)


async def test_calls_that_wait_together_share_a_commit(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: at most one call of each agent; a refused one keeps no other from being stored."""
    store = MemoryStore()
    bench, sizes, commit = await new_bench(store), list[int](), store.commit

    async def observed(appends: Any) -> set[str]:
        sizes.append(len(appends))
        return await commit(appends)

    names = [f"agent-{i}" for i in range(20)]
    for name in names:
        await bench.create(name)
        await bench.start(name)
    monkeypatch.setattr(store, "commit", observed)
    moves = [(name, step) for step in range(2) for name in names]
    requests = [
        control_pb2.StepRequest(agent=name, episode=1, step=step, transition=transition(0, 1, 0)) for name, step in moves
    ]
    requests[3].transition.action = 99
    calls = [bench.commands.report(request, wants_action=True) for request in requests]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [isinstance(outcome, ServiceError) for outcome in outcomes]
    assert [i for i, is_refused in enumerate(refused) if is_refused] == [3, 23]  # its second step has a gap before it
    assert sizes == [19, 19]


async def test_a_call_that_takes_too_long_is_told_so_and_goes_on(new_bench: NewBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEADLINE_EXCEEDED after limits.call_seconds; the repetition is a duplicate."""
    store = MemoryStore()
    bench = await new_bench(store, call_seconds=0.05)
    await bench.begin()
    commit, may_end = store.commit, asyncio.Event()

    async def stalled(appends: Any) -> set[str]:
        await may_end.wait()
        return await commit(appends)

    monkeypatch.setattr(store, "commit", stalled)
    with pytest.raises(DeadlineError, match=r"not done within 0\.05 s"):
        await bench.report(transition(0, 1, 0), episode=1, step=0)
    may_end.set()
    _, reported = await bench.report(transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate


async def test_a_damaged_agent_is_quarantined_and_the_others_go_on(new_bench: NewBench, tmp_path: Path) -> None:
    """Every call for it is DATA_LOSS, creating it anew included; nothing is put in its place."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.create("a", "b")
    await bench.close()
    execute(tmp_path, "UPDATE events SET payload = x'00' WHERE agent = 'a'")
    execute(tmp_path, "DELETE FROM snapshots")
    again = await new_bench(f"sqlite:{tmp_path}")
    for call in (
        again.start,
        again.act,
        again.create,
        lambda: again.commands.delete("a"),
        lambda: again.commands.pause("a", ""),
        lambda: again.agents.verify("a"),
    ):
        with pytest.raises(DataLossError, match="event 1 was changed"):
            await call()
    await again.agents.refresh()
    assert [agent.name for agent in again.agents.agents()] == ["a", "b"]
    reply = await again.start("b")
    assert reply.episode == 1
    await again.close()
    once_more = await new_bench(f"sqlite:{tmp_path}")
    with pytest.raises(DataLossError):
        await once_more.agents.record("a")


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"\xff\xff",
        events_pb2.Event(agent_created=events_pb2.AgentCreated()).SerializeToString(),
        events_pb2.Event(episode_ended=events_pb2.EpisodeEnded(episode=7)).SerializeToString(),
        events_pb2.Event(transitions_observed=events_pb2.TransitionsObserved(episode=7)).SerializeToString(),
    ],
)
async def test_events_that_cannot_be_folded_quarantine_their_agent(new_bench: NewBench, event: bytes) -> None:
    """Of a later release, or of a fault: intact bytes that this release cannot follow stop that agent, not the server."""
    store = MemoryStore()
    bench = await new_bench(store)
    await bench.create("a", "b")
    await store.commit([Append("a", 1, [event])])
    again = await new_bench(store)
    with pytest.raises(DataLossError, match="cannot be folded"):
        await again.agents.record("a")
    assert (await again.agents.record("b")).exists


async def test_a_listed_agent_of_which_nothing_is_found_is_quarantined(new_bench: NewBench) -> None:
    """It was something once: it is neither forgotten nor replaced by a blank one."""

    class Forgetful(MemoryStore):
        async def heads(self, agents: Collection[str] | None = None) -> dict[str, StreamHead]:  # noqa: ARG002
            return {"a": StreamHead(3, 0)}

    bench = await new_bench(Forgetful())
    with pytest.raises(DataLossError, match="nothing is stored under its name"):
        await bench.agents.record("a")


async def test_snapshots_are_taken_by_count_and_at_the_end(tmp_path: Path) -> None:
    """Recovery reads at most so many events; after a clean stop it reads none."""
    bench = await Bench(SqliteStore(tmp_path), every_events=4).open()
    await bench.create()
    for _ in range(5):
        await bench.start(abandon_open=True)
    await bench.agents.runtime.finish()
    stream = await bench.store.load("a")
    assert stream.snapshot is not None
    assert len(stream.events) < 4
    await bench.start(abandon_open=True)
    state = bench.record("a").digest()
    await bench.close()
    store = SqliteStore(tmp_path)
    await store.open()
    assert (await store.load("a")).events == []
    await store.close()
    again = await Bench(SqliteStore(tmp_path)).open()
    assert (await again.agents.record("a")).digest() == state
    await again.close()


async def test_long_trajectories_are_not_left_to_be_read(new_bench: NewBench) -> None:
    """Each is one event, but reading it takes as long as several: snapshots come by steps, too, and begin to count anew."""
    few, steps = await new_bench(every_events=10), 20
    await few.create(horizon=steps)
    taken = []
    for number in range(1, 7):
        await few.start()
        path = [transition(0, 1, 0)] * steps
        await few.commands.report_episode(control_pb2.ReportEpisodeRequest(agent="a", episode=number, transitions=path))
        await few.agents.runtime.finish()
        taken.append(len((await few.store.load("a")).events))
    assert taken == [4, 0, 3, 0, 3, 0]


async def test_a_refused_call_changes_nothing(bench: Any) -> None:
    await bench.begin()
    stored = await bench.store.load("a")
    calls: list[Any] = [
        bench.start(),
        bench.report(transition(0, 9, 0)),
        bench.report(transition(0, 1, 0), episode=1, step=2),
        bench.report(transition(0, 1, 0), episode=9, step=0),
        bench.end(9),
        bench.commands.create("a", make_spec(seed=5)),
        bench.commands.create("b", model_pb2.AgentSpec()),
    ]
    for call in calls:
        with pytest.raises(ServiceError):
            await call
    assert await bench.store.load("a") == stored
    assert list(await bench.store.heads()) == ["a"]
    with pytest.raises(NotFoundError):
        await bench.agents.record("b")


async def test_a_snapshot_of_a_damaged_stream_is_refused(tmp_path: Path) -> None:
    """The event that it stands for must be there; what is served goes on, and nothing is overwritten."""
    bench = await Bench(SqliteStore(tmp_path)).open()
    await bench.create()
    execute(tmp_path, "DELETE FROM events")
    await bench.snapshot("a")
    assert execute(tmp_path, "SELECT count(*) FROM snapshots") == [(0,)]
    with pytest.raises(DamagedStreamError):
        await bench.store.load("a")
    await bench.store.close()


async def test_verifying_a_damaged_agent_quarantines_it(new_bench: NewBench, tmp_path: Path) -> None:
    """At once: nothing more is acknowledged that a restart could not read."""
    bench = await new_bench(f"sqlite:{tmp_path}")
    await bench.begin()
    execute(tmp_path, "UPDATE events SET payload = x'00' WHERE version = 1")
    for call in (lambda: bench.agents.verify("a"), lambda: bench.report(transition(0, 1, 0)), bench.act):
        with pytest.raises(DataLossError, match="event 1 was changed"):
            await call()


async def test_a_busy_agent_still_gets_its_snapshots(new_bench: NewBench) -> None:
    bench = await new_bench(every_events=5)
    await bench.begin(horizon=200)
    calls = [bench.report(transition(0, 1, 0), episode=1, step=step) for step in range(100)]
    await asyncio.gather(*calls)
    assert (await bench.store.heads())["a"].snapshot_version > 50


async def test_a_defect_in_the_loop_fails_every_call_and_stops_the_server(
    new_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller waits for ever, and closing does not hang."""
    store = MemoryStore()
    bench = await new_bench(store)
    await bench.begin()

    async def broken(_appends: object) -> set[str]:
        raise MemoryError

    monkeypatch.setattr(store, "commit", broken)
    calls = [bench.report(transition(0, 1, 0), episode=1, step=step) for step in range(3)]
    for call in calls:
        with pytest.raises(UnavailableError, match="MemoryError"):
            await asyncio.wait_for(call, 10)
    assert bench.agents.runtime.failed.is_set()
    await asyncio.wait_for(bench.close(), 10)
