"""The agents without a network: time-outs, several open episodes, races, other writers, a failing store."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents import decisions, planner
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
from tests.safe_psrl_server.store.appending import execute

Spec = Callable[..., model_pb2.AgentSpec]
See = Callable[..., control_pb2.Transition]


def start(bench: Any, **fields: Any) -> Any:
    return bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", **{"state": 0, **fields}))


def act(bench: Any, state: int, **fields: Any) -> Any:
    return bench.commands.get_action(control_pb2.GetActionRequest(agent="a", state=state, **fields))


def report(bench: Any, transition: control_pb2.Transition, **fields: Any) -> Any:
    request = control_pb2.ReportTransitionRequest(agent="a", transition=transition, **fields)
    return bench.commands.report(request, wants_action=False)


async def start_slowly(bench: Any, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A start whose plan is being made in a worker thread, until `go_on` is set."""
    planning, make_plan = threading.Event(), planner.make_plan

    def slow(*arguments: Any) -> planner.TimedPlan:
        planning.set()
        assert go_on.wait(30)
        return make_plan(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(planner, "is_short", lambda _learner: False)
        patch.setattr(planner, "make_plan", slow)
        waiting = start(bench)
        await asyncio.to_thread(planning.wait, 30)
    return waiting


# --- time


async def test_an_inactive_episode_gives_way(bench: Any, make_spec: Spec, transition: See) -> None:
    """After the agent's time-out the next start abandons it; what it reported stays."""
    await bench.commands.create("a", make_spec(episode_timeout_seconds=60))
    await start(bench)
    bench.clock.pass_seconds(59)
    await report(bench, transition(0, 1, 0))
    bench.clock.pass_seconds(59.999999)
    with pytest.raises(FailedPreconditionError, match="episode 1 is open at step 1"):
        await start(bench)
    bench.clock.pass_seconds(0.000001)
    assert (await start(bench)).episode == 2
    record = bench.record("a")
    assert record.episodes[1].end == events_pb2.EPISODE_END_ABANDONED
    assert record.state.transition_counts.sum() == 1


async def test_asking_for_actions_does_not_give_way(bench: Any, make_spec: Spec) -> None:
    """A bare client goes on with the open episode however long it took; only StartEpisode takes its place."""
    await bench.commands.create("a", make_spec(episode_timeout_seconds=60))
    await start(bench)
    bench.clock.pass_seconds(1000)
    assert (await act(bench, 0)).episode == 1


async def test_the_time_out_is_the_servers_unless_the_agent_has_one(make_bench: Any, make_spec: Spec) -> None:
    """The default comes from the limits and is written into the definition, so that a later default changes nothing."""
    bench = await make_bench(MemoryStore(), episode_timeout_seconds=5).open()
    await bench.commands.create("a", make_spec())
    assert bench.record("a").definition.message.episode_timeout_seconds == 5
    await start(bench)
    bench.clock.pass_seconds(5)
    assert (await start(bench)).episode == 2
    await bench.close()


# --- several open episodes


async def test_as_many_episodes_as_allowed_may_be_open(bench: Any, make_spec: Spec, transition: See) -> None:
    """Each has its own sample and steps; which one is meant must then be said; one more is refused."""
    await bench.commands.create("a", make_spec(max_open_episodes=2))
    first, second = await start(bench), await start(bench)
    assert (first.episode, second.episode) == (1, 2)
    with pytest.raises(FailedPreconditionError) as caught:
        await start(bench)
    assert (caught.value.reason, caught.value.metadata["open_episode"]) == ("EPISODE_OPEN", "1")
    for call in (act(bench, 0), report(bench, transition(0, 1, 0))):
        with pytest.raises(FailedPreconditionError) as caught:
            await call
        assert caught.value.reason == "EPISODE_AMBIGUOUS"
    for episode in (2, 1):
        reported = await report(bench, transition(0, 1, 2), episode=episode, step=0)
        assert (reported.episode.number, reported.step) == (episode, 0)
    assert (await act(bench, 2, episode=2)).step == 1
    await bench.commands.end_episode(control_pb2.EndEpisodeRequest(agent="a", episode=1))
    assert (await act(bench, 2)).episode == 2
    assert (await start(bench)).episode == 3


async def test_only_inactive_ones_of_several_give_way(bench: Any, make_spec: Spec, transition: See) -> None:
    """The one that is still reported to stays open."""
    await bench.commands.create("a", make_spec(max_open_episodes=2, episode_timeout_seconds=60))
    await start(bench)
    await start(bench)
    bench.clock.pass_seconds(60)
    await report(bench, transition(0, 1, 0), episode=1, step=0)
    assert (await start(bench)).episode == 3
    assert [episode.number for episode in bench.record("a").open_episodes] == [1, 3]


async def test_abandoning_takes_all_that_are_open(bench: Any, make_spec: Spec) -> None:
    """As an environment wants that was restarted and knows of none."""
    await bench.commands.create("a", make_spec(max_open_episodes=2))
    await start(bench)
    await start(bench)
    await start(bench, abandon_open=True)
    assert [episode.number for episode in bench.record("a").open_episodes] == [3]


# --- order, races, other writers


async def test_racing_bare_clients_share_one_episode(bench: Any, make_spec: Spec) -> None:
    """Of many that ask while none is open one begins it, and all get its action."""
    await bench.commands.create("a", make_spec())
    replies = await asyncio.gather(*(act(bench, 0) for _ in range(20)))
    assert len(set(replies)) == 1
    assert bench.record("a").episode == 1


async def test_racing_repeats_are_applied_once(bench: Any, make_spec: Spec, transition: See) -> None:
    """A start and a report, each sent twenty times at once."""
    await bench.commands.create("a", make_spec())
    starts = await asyncio.gather(*(start(bench, request_id="k") for _ in range(20)))
    assert {started.episode for started in starts} == {1}
    reports = await asyncio.gather(*(report(bench, transition(0, 1, 0), episode=1, step=0) for _ in range(20)))
    assert sum(not reported.duplicate for reported in reports) == 1
    assert bench.record("a").totals.transitions == 1


async def test_calls_for_an_agent_are_handled_in_their_order(
    tmp_path: Path, make_bench: Any, make_spec: Spec, transition: See
) -> None:
    """Steps sent without waiting for replies find each other's outcome, though each waits for the disk."""
    bench = await make_bench(SqliteStore(tmp_path)).open()
    await bench.commands.create("a", make_spec())
    calls = [start(bench), *(report(bench, transition(0, 1, 0), episode=1, step=step) for step in range(3))]
    _, *reports = await asyncio.gather(*calls)
    assert [(reported.step, reported.duplicate, reported.done) for reported in reports] == [
        (0, False, False),
        (1, False, False),
        (2, False, True),
    ]
    await bench.close()


async def test_a_writer_elsewhere_is_noticed_and_decided_on_anew(make_bench: Any, make_spec: Spec, transition: See) -> None:
    """Two hosts on one store: whoever lost the race reads what the other wrote, and answers from that."""
    store = MemoryStore()
    one, two = await make_bench(store).open(), await make_bench(store).open()
    await one.commands.create("a", make_spec())
    await two.commands.create("a", make_spec())
    await start(one, request_id="k")
    assert (await start(two, request_id="k")).episode == 1
    await report(two, transition(0, 1, 0), episode=1, step=0)
    reported = await report(one, transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate
    assert (await store.load("a")).version == 3
    await report(one, transition(0, 1, 0), episode=1, step=1)
    assert one.record("a").totals.transitions == 2
    await one.close()
    await two.close()


async def test_agents_do_not_wait_for_each_other(bench: Any, make_spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a long plan is made for one agent, another one acts."""
    for name in ("a", "b"):
        await bench.commands.create(name, make_spec())
    go_on = threading.Event()
    waiting = await start_slowly(bench, go_on, monkeypatch)
    acted = await bench.commands.get_action(control_pb2.GetActionRequest(agent="b", state=0))
    assert acted.episode == 1
    assert not waiting.done()
    go_on.set()
    assert (await waiting).episode == 1


async def test_a_plan_made_for_an_outdated_record_is_made_again(
    make_bench: Any, make_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica started an episode while the plan was made: the next one is planned from what it wrote."""
    store = MemoryStore()
    one, two = await make_bench(store).open(), await make_bench(store).open()
    for bench in (one, two):
        await bench.commands.create("a", make_spec(max_open_episodes=2))
    go_on = threading.Event()
    waiting = await start_slowly(one, go_on, monkeypatch)
    assert (await start(two)).episode == 1
    go_on.set()
    assert (await waiting).episode == 2
    assert (await one.agents.verify("a")).equal
    await one.close()
    await two.close()


async def test_a_caller_who_goes_away_leaves_no_half_of_a_call(
    tmp_path: Path, make_bench: Any, make_spec: Spec, transition: See
) -> None:
    """A call is carried out as a whole or not at all: record and store agree, and a retry is recognised."""
    bench = await make_bench(SqliteStore(tmp_path)).open()
    await bench.commands.create("a", make_spec())
    await start(bench)
    for passes in range(6):
        waiting = report(bench, transition(0, 1, 0), episode=1, step=0)
        for _ in range(passes):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    await report(bench, transition(0, 1, 0), episode=1, step=0)
    reported = await report(bench, transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate
    assert bench.record("a").version == (await bench.store.load("a")).version == 3
    assert (await bench.agents.verify("a")).equal
    await bench.close()


async def test_a_stream_that_is_dropped_leaves_no_task_behind(bench: Any, make_spec: Spec, transition: See) -> None:
    """However full its backlog was."""
    await bench.commands.create("a", make_spec())
    await start(bench)
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


async def test_nothing_is_served_before_recovery_and_after_closing(make_bench: Any, make_spec: Spec) -> None:
    """UNAVAILABLE, which clients retry; never an empty answer."""
    bench = make_bench(MemoryStore())
    for call in (lambda: bench.commands.create("a", make_spec()), lambda: start(bench), lambda: act(bench, 0)):
        with pytest.raises(UnavailableError):
            await call()
    await bench.open()
    await bench.commands.create("a", make_spec())
    await bench.close()
    with pytest.raises(UnavailableError):
        await start(bench)


async def test_a_failed_commit_answers_unavailable_and_changes_no_record(
    tmp_path: Path, make_bench: Any, make_spec: Spec, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Persist, then acknowledge: what was not stored is not in the record either, and no later call gets through."""
    bench = await make_bench(SqliteStore(tmp_path)).open()
    await bench.commands.create("a", make_spec())
    await start(bench)
    version = bench.record("a").version

    def fail(*_arguments: object) -> set[str]:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(streams, "append", fail)
        calls = [report(bench, transition(0, 1, 0)) for _ in range(3)]
        for call in calls:
            with pytest.raises(UnavailableError, match="the disk is gone"):
                await call
    with pytest.raises(UnavailableError, match="the disk is gone"):
        await report(bench, transition(0, 1, 0))
    assert bench.record("a").version == version
    assert bench.record("a").totals.transitions == 0
    assert isinstance(bench.agents.runtime.failure, StoreFailedError)
    await bench.close()
    again = await make_bench(SqliteStore(tmp_path)).open()
    assert (await again.agents.record("a")).version == version
    await again.close()


async def test_a_decision_that_fails_unexpectedly_fails_its_own_call_only(
    bench: Any, make_spec: Spec, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on, for the same agent, too."""
    await bench.commands.create("a", make_spec())
    await start(bench)

    def fail(*_arguments: object, **_options: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(decisions, "report", fail)
        with pytest.raises(MemoryError):
            await report(bench, transition(0, 1, 0))
    reported = await asyncio.wait_for(report(bench, transition(0, 1, 0)), 10)
    assert (reported.step, reported.duplicate) == (0, False)


async def test_calls_that_wait_together_share_a_commit(
    make_bench: Any, make_spec: Spec, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Group commit: at most one call of each agent; a refused one keeps no other from being stored."""
    store = MemoryStore()
    bench, sizes, commit = await make_bench(store).open(), list[int](), store.commit

    async def observed(appends: Any) -> set[str]:
        sizes.append(len(appends))
        return await commit(appends)

    names = [f"agent-{i}" for i in range(20)]
    for name in names:
        await bench.commands.create(name, make_spec())
        await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent=name, state=0))
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
    await bench.close()


async def test_a_call_that_takes_too_long_is_told_so_and_goes_on(
    make_bench: Any, make_spec: Spec, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEADLINE_EXCEEDED after limits.call_seconds; the repetition is a duplicate."""
    store = MemoryStore()
    bench = await make_bench(store, call_seconds=0.05).open()
    await bench.commands.create("a", make_spec())
    await start(bench)
    commit, may_end = store.commit, asyncio.Event()

    async def stalled(appends: Any) -> set[str]:
        await may_end.wait()
        return await commit(appends)

    monkeypatch.setattr(store, "commit", stalled)
    with pytest.raises(DeadlineError, match=r"not done within 0\.05 s"):
        await report(bench, transition(0, 1, 0), episode=1, step=0)
    may_end.set()
    reported = await report(bench, transition(0, 1, 0), episode=1, step=0)
    assert reported.duplicate
    await bench.close()


async def test_a_damaged_agent_is_quarantined_and_the_others_go_on(tmp_path: Path, make_bench: Any, make_spec: Spec) -> None:
    """Every call for it is DATA_LOSS, creating it anew included; nothing is put in its place."""
    bench = await make_bench(SqliteStore(tmp_path)).open()
    for name in ("a", "b"):
        await bench.commands.create(name, make_spec())
    await bench.close()
    execute(tmp_path, "UPDATE events SET payload = x'00' WHERE agent = 'a'")
    execute(tmp_path, "DELETE FROM snapshots")
    again = await make_bench(SqliteStore(tmp_path)).open()
    for call in (
        lambda: start(again),
        lambda: act(again, 0),
        lambda: again.commands.create("a", make_spec()),
        lambda: again.commands.delete("a"),
        lambda: again.commands.pause("a", ""),
        lambda: again.agents.verify("a"),
    ):
        with pytest.raises(DataLossError, match="event 1 was changed"):
            await call()
    await again.agents.refresh()
    assert [agent.name for agent in again.agents.agents()] == ["a", "b"]
    reply = await again.commands.start_episode(control_pb2.StartEpisodeRequest(agent="b"))
    assert reply.episode == 1
    await again.close()
    once_more = await make_bench(SqliteStore(tmp_path)).open()
    with pytest.raises(DataLossError):
        await once_more.agents.record("a")
    await once_more.close()


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
async def test_events_that_cannot_be_folded_quarantine_their_agent(make_bench: Any, make_spec: Spec, event: bytes) -> None:
    """Of a later release, or of a fault: intact bytes that this release cannot follow stop that agent, not the server."""
    store = MemoryStore()
    bench = await make_bench(store).open()
    for name in ("a", "b"):
        await bench.commands.create(name, make_spec())
    await store.commit([Append("a", 1, [event])])
    again = await make_bench(store).open()
    with pytest.raises(DataLossError, match="cannot be folded"):
        await again.agents.record("a")
    assert (await again.agents.record("b")).exists


async def test_a_listed_agent_of_which_nothing_is_found_is_quarantined(make_bench: Any) -> None:
    """It was something once: it is neither forgotten nor replaced by a blank one."""

    class Forgetful(MemoryStore):
        async def heads(self, agents: Collection[str] | None = None) -> dict[str, StreamHead]:  # noqa: ARG002
            return {"a": StreamHead(3, 0)}

    bench = await make_bench(Forgetful()).open()
    with pytest.raises(DataLossError, match="nothing is stored under its name"):
        await bench.agents.record("a")


async def test_snapshots_are_taken_by_count_and_at_the_end(tmp_path: Path, make_bench: Any, make_spec: Spec) -> None:
    """Recovery reads at most so many events; after a clean stop it reads none."""
    bench = await make_bench(SqliteStore(tmp_path), every_events=4).open()
    await bench.commands.create("a", make_spec())
    for _ in range(5):
        await start(bench, abandon_open=True)
    await bench.agents.runtime.finish()
    stream = await bench.store.load("a")
    assert stream.snapshot is not None
    assert len(stream.events) < 4
    await start(bench, abandon_open=True)
    state = bench.record("a").digest()
    await bench.close()
    store = SqliteStore(tmp_path)
    await store.open()
    assert (await store.load("a")).events == []
    await store.close()
    again = await make_bench(SqliteStore(tmp_path)).open()
    assert (await again.agents.record("a")).digest() == state
    await again.close()


async def test_long_trajectories_are_not_left_to_be_read(make_bench: Any, make_spec: Spec, transition: See) -> None:
    """Each is one event, but reading it takes as long as several: snapshots come by steps, too, and begin to count anew."""
    few, steps = await make_bench(MemoryStore(), every_events=10).open(), 20
    await few.commands.create("a", make_spec(horizon=steps))
    taken = []
    for number in range(1, 7):
        await start(few)
        path = [transition(0, 1, 0)] * steps
        await few.commands.report_episode(control_pb2.ReportEpisodeRequest(agent="a", episode=number, transitions=path))
        await few.agents.runtime.finish()
        taken.append(len((await few.store.load("a")).events))
    assert taken == [4, 0, 3, 0, 3, 0]
    await few.close()


async def test_a_refused_call_changes_nothing(bench: Any, make_spec: Spec, transition: See) -> None:
    """Whatever the reason, no event is appended."""
    await bench.commands.create("a", make_spec())
    await start(bench)
    stored = await bench.store.load("a")
    calls: list[Any] = [
        start(bench),
        report(bench, transition(0, 9, 0)),
        report(bench, transition(0, 1, 0), episode=1, step=2),
        report(bench, transition(0, 1, 0), episode=9, step=0),
        bench.commands.end_episode(control_pb2.EndEpisodeRequest(agent="a", episode=9)),
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


async def test_a_snapshot_of_a_damaged_stream_is_refused(tmp_path: Path, make_bench: Any, make_spec: Spec) -> None:
    """The event that it stands for must be there; what is served goes on, and nothing is overwritten."""
    bench = await make_bench(SqliteStore(tmp_path)).open()
    await bench.commands.create("a", make_spec())
    execute(tmp_path, "DELETE FROM events")
    await bench.snapshot("a")
    assert execute(tmp_path, "SELECT count(*) FROM snapshots") == [(0,)]
    with pytest.raises(DamagedStreamError):
        await bench.store.load("a")
    await bench.store.close()


async def test_verifying_a_damaged_agent_quarantines_it(
    tmp_path: Path, make_bench: Any, make_spec: Spec, transition: See
) -> None:
    """At once: nothing more is acknowledged that a restart could not read."""
    bench = await make_bench(SqliteStore(tmp_path)).open()
    await bench.commands.create("a", make_spec())
    await start(bench)
    execute(tmp_path, "UPDATE events SET payload = x'00' WHERE version = 1")
    for call in (lambda: bench.agents.verify("a"), lambda: report(bench, transition(0, 1, 0)), lambda: act(bench, 0)):
        with pytest.raises(DataLossError, match="event 1 was changed"):
            await call()
    await bench.close()


async def test_a_busy_agent_still_gets_its_snapshots(make_bench: Any, make_spec: Spec, transition: See) -> None:
    """Calls that never pause do not keep the snapshot waiting."""
    bench = await make_bench(MemoryStore(), every_events=5).open()
    await bench.commands.create("a", make_spec(horizon=200))
    await start(bench)
    calls = [report(bench, transition(0, 1, 0), episode=1, step=step) for step in range(100)]
    await asyncio.gather(*calls)
    assert (await bench.store.heads())["a"].snapshot_version > 50
    await bench.close()


async def test_a_defect_in_the_loop_fails_every_call_and_stops_the_server(
    make_bench: Any, make_spec: Spec, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller waits for ever, and closing does not hang."""
    store = MemoryStore()
    bench = await make_bench(store).open()
    await bench.commands.create("a", make_spec())
    await start(bench)

    async def broken(_appends: object) -> set[str]:
        raise MemoryError

    monkeypatch.setattr(store, "commit", broken)
    calls = [report(bench, transition(0, 1, 0), episode=1, step=step) for step in range(3)]
    for call in calls:
        with pytest.raises(UnavailableError, match="MemoryError"):
            await asyncio.wait_for(call, 10)
    assert bench.agents.runtime.failed.is_set()
    await asyncio.wait_for(bench.close(), 10)
