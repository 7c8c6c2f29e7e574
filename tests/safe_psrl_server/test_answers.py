"""What is durable at once is answered before it is applied; whoever reads a record finds it applied all the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.control_service import step_reply
from safe_psrl_server.errors import UnavailableError
from safe_psrl_server.snapshot import snapshot_of
from safe_psrl_server.store import gathering
from safe_psrl_server.store.sqlite import SqliteStore

MakeSpec = Callable[..., model_pb2.AgentSpec]
See = Callable[..., control_pb2.Transition]


@pytest.fixture
async def alone(
    tmp_path: Path, make_bench: Callable[..., Any], make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """A host whose disk is fast, and whose only caller has begun episode 1 of agent "a"."""
    monkeypatch.setattr(gathering, "FAST_COMMIT", inf)
    bench = await make_bench(SqliteStore(tmp_path / "data")).open()
    await bench.commands.create("a", make_spec())
    await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", state=0))
    be_alone(bench)
    yield bench
    await bench.close()


def be_alone(bench: Any) -> None:
    waiting = bench.store._gathering
    waiting._lone_commits, waiting._usual_seconds, waiting._was_shared = 100, 0.0, False


def begin(bench: Any, request: control_pb2.StepRequest) -> "asyncio.Future[control_pb2.StepResponse]":
    return bench.commands.begin_report(request, wants_action=True, answer=lambda outcome: step_reply(*outcome))


def step(moved: control_pb2.Transition, number: int = 0) -> control_pb2.StepRequest:
    return control_pb2.StepRequest(agent="a", episode=1, step=number, transition=moved)


async def test_a_step_is_answered_before_it_is_applied(alone: Any, transition: See) -> None:
    """The reply is the one that a repetition gets, and what is stored is what is applied in the end."""
    record = alone.host.record("a")
    version = record.version
    answer = begin(alone, step(transition(0, 1, 2)))
    assert answer.done()
    first = answer.result()
    assert record.version == version
    assert await alone.store.version("a") == version + 1
    again = step_reply(*await alone.commands.report(step(transition(0, 1, 2)), wants_action=True))
    assert (first.duplicate, again.duplicate) == (False, True)
    again.duplicate = False
    assert first == again
    assert (await alone.host.verify("a")).same


@pytest.mark.parametrize("reader", ["record", "decide", "the loop", "snapshot"])
async def test_whoever_reads_the_record_next_finds_it_applied(alone: Any, transition: See, reader: str) -> None:
    hosted = alone.host._agents["a"]
    assert begin(alone, step(transition(0, 1, 2))).done()
    assert hosted.record.totals.transitions == 0
    if reader == "record":
        assert alone.host.record("a").totals.transitions == 1
    elif reader == "decide":
        assert begin(alone, step(transition(2, 1, 0), 1)).done()
        assert hosted.record.totals.transitions == 1  # and the second one waits in turn
        assert alone.host.record("a").totals.transitions == 2
    elif reader == "snapshot":
        await alone.host.snapshot("a")
        assert hosted.snapshot_version == hosted.record.version == alone.host.record("a").version
    await asyncio.sleep(0)
    assert hosted.record.totals.transitions == (2 if reader == "decide" else 1)
    assert hosted.turns.is_free


async def test_the_last_step_ends_its_episode_in_the_reply_already(alone: Any, transition: See) -> None:
    replies = []
    for number in range(3):
        be_alone(alone)
        answer = begin(alone, step(transition(0, 1, 0), number))
        assert answer.done()
        replies.append(answer.result())
    assert [reply.episode_done for reply in replies] == [False, False, True]
    assert alone.host.record("a").open_episodes == []


async def test_what_was_answered_and_cannot_be_applied_is_read_again(
    alone: Any, transition: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is durable, so the answer holds."""
    record = alone.host.record("a")

    def fail(_event: object) -> None:
        raise MemoryError

    monkeypatch.setattr(record, "apply", fail)
    assert begin(alone, step(transition(0, 1, 2))).done()
    _, repeated = await alone.commands.report(step(transition(0, 1, 2)), wants_action=True)
    assert repeated.duplicate
    assert alone.host.record("a") is not record
    assert snapshot_of(alone.host.record("a")).totals.transitions == 1


async def test_nobody_is_answered_whose_commit_failed(alone: Any, transition: See, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its answer was made already."""

    def fail(_commit: bytes, meanwhile: Callable[[], None]) -> None:
        meanwhile()
        raise OSError("the disk is gone")

    monkeypatch.setattr(alone.store._log, "append_alone", fail)
    with pytest.raises(UnavailableError, match="the disk is gone"):
        await begin(alone, step(transition(0, 1, 2)))
    assert alone.host.record("a").totals.transitions == 0


async def test_the_loop_stays_awake_for_whoever_is_alone(alone: Any, transition: See, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for calls that share their commits."""
    answered = list[int]()
    alone.host.keep_vigils()
    monkeypatch.setattr(alone.host._transactions.vigil, "answered", lambda: answered.append(1))
    await begin(alone, step(transition(0, 1, 0)))
    assert answered == [1]
    alone.store._gathering._lone_commits = 0
    await begin(alone, step(transition(0, 1, 0), 1))
    assert answered == [1]


@pytest.mark.parametrize("meanwhile", [True, False])
async def test_an_answer_is_made_once_while_the_disk_writes_or_after_it(
    alone: Any, transition: See, monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    order = list[str]()

    def write(_commit: bytes, do: Callable[[], None]) -> None:
        if meanwhile:
            do()
        order.append("written")

    monkeypatch.setattr(alone.store._log, "append_alone", write)
    answer = alone.commands.begin_report(
        step(transition(0, 1, 2)), wants_action=True, answer=lambda _outcome: order.append("answered")
    )
    assert answer.done()
    assert order == (["answered", "written"] if meanwhile else ["written", "answered"])


async def test_an_answer_that_cannot_be_made_is_told_and_what_it_was_of_is_stored(alone: Any, transition: See) -> None:
    """Whether it is made at once, or when others commit, too."""

    def fail(_outcome: object) -> None:
        raise MemoryError("no room for it")

    for number, lone_commits in ((0, 100), (1, 0)):
        alone.store._gathering._lone_commits = lone_commits
        with pytest.raises(MemoryError, match="no room"):
            await alone.commands.begin_report(step(transition(0, 1, 0), number), wants_action=True, answer=fail)
        assert alone.host.record("a").totals.transitions == number + 1
    assert (await alone.host.verify("a")).same


@pytest.mark.parametrize("lone_commits", [100, 0])
async def test_a_repetition_is_answered_by_the_same_means(alone: Any, transition: See, lone_commits: int) -> None:
    """Which appends nothing; and so is a call that shares its commit."""
    alone.store._gathering._lone_commits = lone_commits
    first = await begin(alone, step(transition(0, 1, 2)))
    again = await begin(alone, step(transition(0, 1, 2)))
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.action == again.action
