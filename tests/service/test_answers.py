"""What is durable at once is answered before it is applied; whoever reads a record finds it applied all the same."""

import asyncio
from collections.abc import AsyncIterator, Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.control_service import step_reply
from safe_psrl_server.snapshot import snapshot_of
from safe_psrl_server.store import sqlite
from safe_psrl_server.store.sqlite import SqliteStore

MakeSpec = Callable[..., model_pb2.AgentSpec]
See = Callable[..., control_pb2.Transition]


@pytest.fixture
async def alone(
    tmp_path: Path, make_bench: Callable[..., Any], make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """A host whose disk is fast, and whose only caller has begun episode 1 of agent "a"."""
    monkeypatch.setattr(sqlite, "FAST_COMMIT", inf)
    bench = await make_bench(SqliteStore(tmp_path / "data")).open()
    await bench.commands.create("a", make_spec())
    await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", state=0))
    be_alone(bench)
    yield bench
    await bench.close()


def be_alone(bench: Any) -> None:
    bench.store._lone_commits, bench.store._usual_seconds, bench.store._was_shared = 100, 0.0, False


def step(moved: control_pb2.Transition, number: int = 0) -> control_pb2.StepRequest:
    return control_pb2.StepRequest(agent="a", episode=1, step=number, transition=moved)


async def test_a_step_is_answered_before_it_is_applied(alone: Any, transition: See) -> None:
    """The reply is the one that a repetition gets, and what is stored is what is applied in the end."""
    record = alone.host.record("a")
    version = record.version
    answer = alone.commands.begin_report(step(transition(0, 1, 2)), wants_action=True)
    assert answer.done()
    assert record.version == version
    first = step_reply(*answer.result())
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
    assert alone.commands.begin_report(step(transition(0, 1, 2)), wants_action=True).done()
    assert hosted.record.totals.transitions == 0
    if reader == "record":
        assert alone.host.record("a").totals.transitions == 1
    elif reader == "decide":
        assert alone.commands.begin_report(step(transition(2, 1, 0), 1), wants_action=True).done()
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
        answer = alone.commands.begin_report(step(transition(0, 1, 0), number), wants_action=True)
        assert answer.done()
        replies.append(step_reply(*answer.result()))
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
    assert alone.commands.begin_report(step(transition(0, 1, 2)), wants_action=True).done()
    _, repeated = await alone.commands.report(step(transition(0, 1, 2)), wants_action=True)
    assert repeated.duplicate
    assert alone.host.record("a") is not record
    assert snapshot_of(alone.host.record("a")).totals.transitions == 1


async def test_nobody_is_answered_whose_commit_failed(alone: Any, transition: See, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_commit: bytes) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(alone.store._log, "append_alone", fail)
    with pytest.raises(Exception, match="the disk is gone"):
        await alone.commands.begin_report(step(transition(0, 1, 2)), wants_action=True)
    assert alone.host.record("a").totals.transitions == 0
