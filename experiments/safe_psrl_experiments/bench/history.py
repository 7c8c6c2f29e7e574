"""`bench grow`: storing a long history, and rebuilding its agent."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from safe_psrl.problem.presets import preset
from safe_psrl_experiments.bench.measure import Report, Result, judged, silent
from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents import decisions
from safe_psrl_server.agents.definition import completed
from safe_psrl_server.agents.episode_events import TimedPlan, starting
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.agents.planner import PLANNED_BY
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import folded, snapshot_of
from safe_psrl_server.store.interface import Append
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore

AGENT: Final = "agent"
GROUP: Final = 10_000  # events per append
TAIL: Final = 2_000  # events after a snapshot: the most before the service takes the next
TURNS: Final = 3
SHORT_TURNS: Final = 20  # of what takes some milliseconds


def bench_history(directory: Path, transitions: int, report: Report = silent) -> list[Result]:
    """Results for an agent with that many transitions, and for one with a tenth of them. Stores are created in `directory`."""
    return asyncio.run(_bench(directory, transitions, report))


async def _bench(directory: Path, transitions: int, report: Report) -> list[Result]:
    long, short = SqliteStore(directory / "long"), SqliteStore(directory / "short")
    for store in (long, short):
        await store.open()
    payload, version = await _write(long, transitions, report)
    await _write(short, transitions // 10, report)
    stored = sum(path.stat().st_size for path in (directory / "long").glob(f"{DATABASE_FILE}*"))
    report(f"rebuilding from {transitions:,} transitions without a snapshot")
    whole = min([await _rebuild(long) for _ in range(TURNS)])  # the fastest: a shared machine only adds time
    bare = min(_read_bare(directory / "long" / DATABASE_FILE) for _ in range(TURNS))
    report("rebuilding from snapshots")
    for store in (long, short):
        await _save_snapshots(store)
    turns = [(await _rebuild(long), await _rebuild(short)) for _ in range(SHORT_TURNS)]
    with_long, with_short = (min(seconds) * 1e3 for seconds in zip(*turns, strict=True))
    for store in (long, short):
        await store.close()
    name, tenth, alone = f"{transitions:,} transitions", "a tenth of the history", "the events alone"
    rates = (version / whole, version / bare)
    return [
        judged(f"recovery of {name}, no snapshot", *rates, "bare sqlite3 and protobuf", "events/s", (">=", 0.15)),
        judged(f"recovery of {name}, snapshots", with_long, with_short, tenth, "ms", ("<=", 1.5)),
        judged("database for each step", stored / transitions, payload / transitions, alone, "bytes", ("<=", 2)),
    ]


async def _write(store: SqliteStore, transitions: int, report: Report) -> tuple[int, int]:
    """Write that history, without a snapshot; return the bytes of its events, and its version."""
    events, version, size = history(transitions), 0, 0
    while group := [event.SerializeToString() for event in islice(events, GROUP)]:
        await store.commit([Append(AGENT, version, group)])
        version += len(group)
        size += sum(map(len, group))
        report(f"writing a history of {transitions:,} transitions: {version:,} events")
    return size, version


def history(transitions: int) -> Iterator[events_pb2.Event]:
    """The events of a streaming buffer agent that stays in state 0, reported step by step. One plan is repeated."""
    spec = preset("streaming-buffer")
    definition = completed(model_pb2.AgentSpec(cmdp=cmdp_to_message(spec)), 3600.0)
    now = time.time_ns() // 1000
    created = events_pb2.Event(time_micros=now, agent_created=events_pb2.AgentCreated(spec=definition))
    record = AgentRecord(AGENT)
    record.apply(created)
    _, plan = record.definition.learner.start_episode(record.state)
    started = starting(record, TimedPlan(plan, 1e-4), control_pb2.StartEpisodeRequest(state=0), PLANNED_BY, now)
    record.apply(started)
    seen = control_pb2.Transition(state=0, action=0, next_state=0)
    played = list[events_pb2.Event]()
    for _ in range(spec.horizon):
        events = decisions.report(record, plan.episode, None, seen, now).events
        for event in events:
            record.apply(event)
        played += events
    yield created
    for episode in range(1, -(-transitions // spec.horizon) + 1):
        for event in (started, *played):
            getattr(event, event.WhichOneof("kind") or "").episode = episode
            event.time_micros += 1
            yield event


async def _rebuild(store: SqliteStore) -> float:
    """The seconds that the agent takes at its first use."""
    began = time.perf_counter()
    folded(AGENT, await store.load(AGENT))
    return time.perf_counter() - began


def _read_bare(database: Path) -> float:
    """The seconds to read and parse the same rows, and nothing else."""
    db = sqlite3.connect(database)
    try:
        began = time.perf_counter()
        rows = db.execute("SELECT version, payload, link FROM events WHERE agent = ? ORDER BY version", (AGENT,)).fetchall()
        for _, payload, _ in rows:
            events_pb2.Event.FromString(payload)
        return time.perf_counter() - began
    finally:
        db.close()


async def _save_snapshots(store: SqliteStore) -> None:
    """Two snapshots, so that the history behind the first is dropped, and events after each."""
    resumed = events_pb2.Event(agent_resumed=events_pb2.AgentResumed()).SerializeToString()
    for _ in range(2):
        stream = await store.load(AGENT)
        await store.save_snapshot(AGENT, stream.version, snapshot_of(folded(AGENT, stream)).SerializeToString())
        await store.commit([Append(AGENT, stream.version, [resumed] * TAIL)])
