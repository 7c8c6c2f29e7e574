"""Calls that wait for a commit together, and are decided in a row right before it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.control_service import step_reply
from safe_psrl_server.errors import NotFoundError, StepGapError, UnavailableError
from safe_psrl_server.store import gathering
from safe_psrl_server.store.gathering import MAX_GROUP, Gathering
from safe_psrl_server.store.sqlite import SqliteStore

MakeSpec = Callable[..., model_pb2.AgentSpec]
See = Callable[..., control_pb2.Transition]
AGENTS = ("a", "b", "c")


class Commits:
    """What a store would be handed, and ends when told to."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []
        self.gathering: Gathering[str] = Gathering(self._commit, lambda _entry: True)
        self.gathering.open(asyncio.get_running_loop())

    def _commit(self, entries: list[str], _by_the_loop: bool) -> None:
        self.made.append(entries)

    async def until(self, commits: int) -> None:
        async with asyncio.timeout(10):
            while len(self.made) < commits:  # noqa: ASYNC110  # the passes of the loop are what is tested
                await asyncio.sleep(0)


async def test_work_is_done_right_before_the_commit_that_takes_what_it_adds() -> None:
    """In the order in which it came, and nothing of it as long as a commit is under way."""
    commits = Commits()
    waiting = commits.gathering
    for name in "xyz":
        waiting.gather(lambda name=name: waiting.add(name))  # type: ignore[misc]
    assert not commits.made
    await commits.until(1)
    assert commits.made == [["x", "y", "z"]]
    waiting.gather(lambda: waiting.add("later"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(commits.made) == 1
    waiting.over(3)
    await commits.until(2)
    assert commits.made[1] == ["later"]


async def test_work_that_adds_nothing_needs_no_commit() -> None:
    """And whoever comes next is not kept waiting for one."""
    commits, done = Commits(), list[str]()
    commits.gathering.gather(lambda: done.append("x"))
    async with asyncio.timeout(10):
        while commits.gathering.is_busy:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert (done, commits.made) == (["x"], [])
    commits.gathering.gather(lambda: commits.gathering.add("y"))
    await commits.until(1)


async def test_what_would_take_too_long_in_a_row_is_left_for_the_next_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which do not wait for anybody to join them. Nothing is left over in the end, nor done twice."""
    clock = [0.0]
    monkeypatch.setattr(gathering, "AT_ONCE", 2.5)
    monkeypatch.setattr(gathering, "MOST_DELAY", inf)
    monkeypatch.setattr(gathering, "EMPTY_PASS", inf)
    monkeypatch.setattr(gathering.time, "perf_counter", lambda: clock[0])
    commits = Commits()

    def work(number: int) -> Callable[[], None]:
        def do() -> None:
            clock[0] += 1.0
            commits.gathering.add(str(number))

        return do

    for number in range(7):
        commits.gathering.gather(work(number))
    await commits.until(1)
    monkeypatch.setattr(gathering, "QUIET_PASSES", 10**9)  # that nobody waits for: the others are late as it is
    monkeypatch.setattr(gathering, "PATIENT_PASSES", 10**9)
    for done in (2, 3):
        commits.gathering.over(3)
        await commits.until(done)
    assert commits.made == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


async def test_a_commit_has_no_more_entries_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "AT_ONCE", inf)
    commits = Commits()
    for _ in range(MAX_GROUP + 1):
        commits.gathering.gather(lambda: commits.gathering.add("x"))
    await commits.until(1)
    commits.gathering.over(MAX_GROUP)
    await commits.until(2)
    assert [len(entries) for entries in commits.made] == [MAX_GROUP, 1]


async def test_when_nothing_is_committed_any_more_everybody_hears_of_it() -> None:
    commits, done = Commits(), list[str]()
    commits.gathering.add("x")
    commits.gathering.gather(lambda: done.append("y"))
    assert commits.gathering.give_up() == ["x"]
    assert done == ["y"]


# --- through the host


@pytest.fixture
async def shared(
    tmp_path: Path, make_bench: Callable[..., Any], make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """A host none of whose callers is alone, with an episode of each agent."""
    bench = await with_agents(make_bench(SqliteStore(tmp_path / "data")), make_spec, monkeypatch)
    yield bench
    await bench.close()


async def with_agents(bench: Any, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gathering, "FAST_COMMIT", -inf)
    await bench.open()
    for agent in AGENTS:
        await bench.commands.create(agent, make_spec())
        await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent=agent, state=0))
    return bench


def begin(bench: Any, agent: str, moved: control_pb2.Transition, number: int = 0) -> "asyncio.Future[control_pb2.StepResponse]":
    request = control_pb2.StepRequest(agent=agent, episode=1, step=number, transition=moved)
    return bench.commands.begin_report(request, wants_action=True, answer=lambda outcome: step_reply(*outcome))


async def test_calls_are_decided_together_and_share_a_commit(shared: Any, transition: See) -> None:
    before = shared.store._journal.commits
    answers = [begin(shared, agent, transition(0, 1, 2)) for agent in AGENTS]
    assert all(shared.host._agents[agent].turns.is_free for agent in AGENTS)  # nothing is decided yet
    replies = await asyncio.gather(*answers)
    assert shared.store._journal.commits == before + 1
    for agent, reply in zip(AGENTS, replies, strict=True):
        policy = shared.host.record(agent).episodes[1].policy
        assert reply.action == policy[1, 2]
        assert (await shared.host.verify(agent)).same


async def test_calls_of_one_agent_are_decided_in_their_order(shared: Any, transition: See) -> None:
    """Each after what came of the one before, though all of them come before anything is decided."""
    answers = [begin(shared, "a", transition(0, 1, 0), number) for number in range(3)]
    replies = await asyncio.gather(*answers)
    assert [reply.step for reply in replies] == [0, 1, 2]
    assert [reply.episode_done for reply in replies] == [False, False, True]
    assert (await shared.host.verify("a")).same


async def test_what_is_refused_does_not_keep_the_others_from_being_stored(shared: Any, transition: See) -> None:
    gap = begin(shared, "a", transition(0, 1, 0), 2)
    nobody = begin(shared, "nobody", transition(0, 1, 0))
    good = begin(shared, "b", transition(0, 1, 0))
    with pytest.raises(StepGapError):
        await gap
    with pytest.raises(NotFoundError):
        await nobody
    assert not (await good).duplicate
    assert [shared.host.record(agent).totals.transitions for agent in AGENTS] == [0, 1, 0]
    assert shared.host._agents["a"].turns.is_free


async def test_a_repetition_among_gathered_calls_is_recognised(shared: Any, transition: See) -> None:
    first, again = begin(shared, "a", transition(0, 1, 0)), begin(shared, "a", transition(0, 1, 0))
    assert [reply.duplicate for reply in await asyncio.gather(first, again)] == [False, True]
    assert shared.host.record("a").totals.transitions == 1
    assert (await begin(shared, "a", transition(0, 1, 0))).duplicate  # by itself: nothing is committed for it


async def test_an_unforeseen_error_of_one_is_told_to_its_caller_alone(
    shared: Any, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise MemoryError("no room for it")

    clock = shared.host.now_micros
    bad = begin(shared, "a", transition(0, 1, 0))
    monkeypatch.setattr(shared.host, "now_micros", lambda: (monkeypatch.setattr(shared.host, "now_micros", clock), fail()))
    good = begin(shared, "b", transition(0, 1, 0))
    with pytest.raises(MemoryError, match="no room"):
        await bad
    assert not (await good).duplicate
    assert not (await begin(shared, "a", transition(0, 1, 0))).duplicate  # its turn was given back


async def test_calls_that_wait_while_a_commit_fails_hear_of_it(
    shared: Any, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is under way, those that wait for the next, and those that come later."""

    def fail(_commit: bytes) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(shared.store._log, "append", fail)
    under_way = begin(shared, "a", transition(0, 1, 0))
    async with asyncio.timeout(10):
        while shared.host._agents["a"].turns.is_free:  # noqa: ASYNC110
            await asyncio.sleep(0)
    waiting = begin(shared, "b", transition(0, 1, 0))
    for call in (under_way, waiting):
        with pytest.raises(UnavailableError, match="the disk is gone"):
            await asyncio.wait_for(call, 10)
    with pytest.raises(UnavailableError, match="the disk is gone"):
        await asyncio.wait_for(begin(shared, "c", transition(0, 1, 0)), 10)


async def test_a_store_that_is_closed_keeps_what_was_gathered(
    tmp_path: Path, make_bench: Callable[..., Any], make_spec: MakeSpec, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await with_agents(make_bench(SqliteStore(tmp_path / "data")), make_spec, monkeypatch)
    answers = [begin(bench, agent, transition(0, 1, 2)) for agent in AGENTS]
    await bench.store.close()
    assert [(await answer).step for answer in answers] == [0, 0, 0]
    other = await make_bench(SqliteStore(tmp_path / "data")).open()
    assert [other.host.record(agent).totals.transitions for agent in AGENTS] == [1, 1, 1]
    await other.close()
