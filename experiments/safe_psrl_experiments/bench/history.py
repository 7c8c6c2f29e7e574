"""`bench grow`: what a long history takes, to store and to read again."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from safe_psrl.problem.presets import preset
from safe_psrl_experiments.bench.measure import Result, judged
from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents import decisions
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.agents.conversion import cmdp_to_message
from safe_psrl_server.agents.definition import completed
from safe_psrl_server.agents.planner import PLANNED_BY
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore

AGENT: Final = "agent"
GROUP: Final = 10_000  # events of an append
TAIL: Final = 2_000  # events after a snapshot: as many as there are at most before the service takes the next
TURNS: Final = 3
SHORT_TURNS: Final = 20  # of what takes some milliseconds

Report = Callable[[str], None]


class _Read(NamedTuple):
    """How long it took to read a history again."""

    seconds: float
    events: int


def bench_history(directory: Path, transitions: int, report: Report = lambda _: None) -> list[Result]:
    """Of an agent with so many transitions, and of one with a tenth of them. Stores are made in `directory`."""
    long, short = directory / "long", directory / "short"
    payload = _write(long, transitions, report)
    _write(short, transitions // 10, report)
    stored = sum(path.stat().st_size for path in long.glob(f"{DATABASE_FILE}*"))
    report(f"reading {transitions:,} transitions without a snapshot")
    recovery, bare = _in_turn(lambda: _recover(long), lambda: _read_bare(long), TURNS)
    for place in (long, short):
        report("reading with snapshots")
        asyncio.run(_snapshot_and_go_on(place))
    with_long, with_short = _in_turn(lambda: _recover(long), lambda: _recover(short), SHORT_TURNS)
    name = f"{transitions:,} transitions"
    return [
        judged(
            f"recovery of {name}, no snapshot",
            recovery.events / recovery.seconds,
            bare.events / bare.seconds,
            "bare sqlite3 and protobuf",
            "events/s",
            (">=", 0.15),
        ),
        judged(
            f"recovery of {name}, snapshots",
            with_long.seconds * 1e3,
            with_short.seconds * 1e3,
            "a tenth of the history",
            "ms",
            ("<=", 1.5),
        ),
        judged("journal for each step", stored / transitions, payload / transitions, "the events alone", "bytes", ("<=", 2)),
    ]


def _in_turn(first: Callable[[], _Read], second: Callable[[], _Read], turns: int) -> tuple[_Read, _Read]:
    """The fastest of some turns each: a shared machine only ever makes slower."""
    read = [(first(), second()) for _ in range(turns)]
    return min(turn[0] for turn in read), min(turn[1] for turn in read)


def _write(directory: Path, transitions: int, report: Report) -> int:
    """A store with that history, and no snapshot; the bytes of its events."""

    async def write() -> int:
        store, events, version, size = SqliteStore(directory), _history(transitions), 0, 0
        await store.open()
        while group := [event.SerializeToString() for event in islice(events, GROUP)]:
            version = await store.append(AGENT, version, group)
            size += sum(map(len, group))
            report(f"writing a history of {transitions:,} transitions: {version:,} events")
        await store.close()
        return size

    return asyncio.run(write())


def _history(transitions: int) -> Iterator[events_pb2.Event]:
    """What an agent of the streaming buffer stores that stays in state 0, step by step. One plan is played again and again."""
    spec = preset("streaming-buffer")
    definition = completed(model_pb2.AgentSpec(cmdp=cmdp_to_message(spec)), 3600.0)
    now = time.time_ns() // 1000
    created = events_pb2.Event(time_micros=now, agent_created=events_pb2.AgentCreated(spec=definition))
    record = AgentRecord(AGENT)
    record.apply(created)
    _, plan = record.definition.learner.start_episode(record.state)
    started = decisions.starting(plan, "", 0, PLANNED_BY, 1e-4, now)
    record.apply(started)
    seen = control_pb2.Transition(state=0, action=0, next_state=0)
    played = list[events_pb2.Event]()
    for _ in range(spec.horizon):
        events, _ = decisions.report(record, plan.episode, None, seen, now)
        for event in events:
            record.apply(event)
        played += events
    yield created
    for episode in range(1, -(-transitions // spec.horizon) + 1):
        for event in (started, *played):
            getattr(event, event.WhichOneof("kind") or "").episode = episode
            event.time_micros += 1
            yield event


def _recover(directory: Path) -> _Read:
    """As the service does at its start."""

    async def recover() -> _Read:
        store = SqliteStore(directory)
        await store.open()
        try:
            host = AgentService(store, Limits(), SnapshotPolicy())
            began = time.perf_counter()
            await host.recover()
            seconds = time.perf_counter() - began
            host.ready = True
            return _Read(seconds, host.record(AGENT).version)
        finally:
            await store.close()

    return asyncio.run(recover())


def _read_bare(directory: Path) -> _Read:
    """The same rows, each one parsed, and nothing else."""
    db = sqlite3.connect(directory / DATABASE_FILE)
    try:
        began = time.perf_counter()
        rows = db.execute("SELECT version, payload, link FROM events WHERE agent = ? ORDER BY version", (AGENT,)).fetchall()
        for _, payload, _ in rows:
            events_pb2.Event.FromString(payload)
        return _Read(time.perf_counter() - began, len(rows))
    finally:
        db.close()


async def _snapshot_and_go_on(directory: Path) -> None:
    """Two snapshots, so that the history is dropped, and events after them."""
    store = SqliteStore(directory)
    await store.open()
    host = AgentService(store, Limits(), SnapshotPolicy())
    await host.recover()
    host.ready = True
    version = host.record(AGENT).version
    pauses = [events_pb2.Event(agent_resumed=events_pb2.AgentResumed()).SerializeToString()]
    await host.snapshot(AGENT)
    await store.append(AGENT, version, pauses * TAIL)
    again = AgentService(store, Limits(), SnapshotPolicy())
    await again.recover()
    await again.snapshot(AGENT)
    await store.append(AGENT, version + TAIL, pauses * TAIL)
    await store.close()
