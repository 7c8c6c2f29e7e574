"""A soak: the same mixed load on two servers for a long time, one of which is killed again and again.

Whatever leaks, leaks slowly, and a killed process begins anew. So there is a server that is never killed, whose memory,
descriptors, latency and files must be flat over the whole time; and one that is, which must lose nothing and whose files
must stay bounded. Slopes of the second are taken within its lives, and are shown.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.soak.load import Load
from tests.soak.sampling import Sampler
from tests.soak.slopes import Slope, slope
from tests.system.server_process import ServerProcess, counter

QUANTITIES: Final = {  # unit of a slope is this an hour
    "memory": "MB",
    "descriptors": "files",
    "threads": "threads",
    "p50": "ms",
    "p99": "ms",
    "database": "MB",
    "log": "MB",
    "machine": "ms",
}
SETTINGS: Final = """
[snapshots]
every_events = 500
check_seconds = 2
[limits]
max_connection_age_seconds = 30
connection_grace_seconds = 30
"""
NewServer = Callable[..., ServerProcess]


@dataclass(frozen=True)
class Plan:
    """Duration, load and kills."""

    minutes: float
    steps: float = 100.0  # a second at each server
    kill_seconds: tuple[float, float] = (60.0, 180.0)  # the shortest and longest life
    warm_up: float = 300.0  # seconds of a life that do not count: caches fill, the allocator finds its size
    seed: int = 2026
    resident: int = 0  # agents that fit into memory, if not all; a crowd of three times as many plays

    @property
    def settings(self) -> str:
        return SETTINGS + (f"max_resident_agents = {self.resident}\n" if self.resident else "")


@dataclass(frozen=True)
class Flat:
    """The most that the lower end of a slope's interval may be, an hour."""

    memory: float = 4.0  # MB
    descriptors: float = 0.5
    threads: float = 0.5
    latency: float = 0.3  # of the level, beyond what the machine itself grew slower by; twice that for the 99th percentile
    files: float = 4.0  # MB, of the database
    logs: float = 4.0  # MB, of its logs


@dataclass
class Side:
    """One of the two servers."""

    name: str
    server: ServerProcess
    sampler: Sampler
    load: Load
    transitions: int = 0
    evictions: int = 0  # in the last life

    def slopes(self, warm_up: float) -> dict[str, Slope]:
        lives = {quantity: self.sampler.lives(quantity, warm_up) for quantity in QUANTITIES}
        return {quantity: slope(series) for quantity, series in lives.items() if series}


def run(new_server: NewServer, plan: Plan, scratch: Path, on_minute: Callable[[str], None] = lambda _: None) -> list[Side]:
    """Soak both servers and check their ledgers. Raises the first failure of a client."""
    began = time.monotonic()
    sides = [
        _side(name, new_server(metrics=True, settings=plan.settings), plan, scratch, began) for name in ("steady", "killed")
    ]
    for side in sides:
        side.load.start()
        side.sampler.start()
    steady, killed = sides
    chosen, pause, minute = random.Random(plan.seed), threading.Event(), 1
    due = chosen.uniform(*plan.kill_seconds)
    while (now := time.monotonic() - began) < plan.minutes * 60:
        for side in sides:
            side.load.raise_failure()
        assert steady.server.running.poll() is None, f"the server ended by itself: {steady.server.log}"
        if now >= due:
            killed.sampler.kills.append(now)
            killed.server.kill()
            killed.server.spawn()
            due = now + chosen.uniform(*plan.kill_seconds)
        if now >= 60 * minute:
            latest = steady.sampler.samples[-1]
            on_minute(f"minute {minute}: {latest.memory:.1f} MB, {latest.descriptors:.0f} files, {latest.p50:.2f} ms")
            minute += 1
        pause.wait(0.2)
    for side in sides:
        side.sampler.stop()
        side.load.stop()
        side.transitions = side.load.check()
        side.evictions = int(counter(side.server.http("/metrics")[1], "agent_evictions_total"))
    return sides


def complaints(sides: list[Side], plan: Plan, flat: Flat) -> list[str]:
    """What is not flat. A slope counts if all of its interval is above the limit: noise alone is no growth."""
    steady = sides[0].slopes(plan.warm_up)
    machine = max(0.0, steady["machine"].high / steady["machine"].level)
    limits = {
        "memory": flat.memory,
        "descriptors": flat.descriptors,
        "threads": flat.threads,
        "p50": (flat.latency + machine) * steady["p50"].level,
        "p99": (2 * flat.latency + machine) * steady["p99"].level,
        "database": flat.files,
        "log": flat.logs,
    }
    grown = [
        f"{quantity} grows by {steady[quantity].per_hour:.3g} {QUANTITIES[quantity]} an hour "
        f"(at least {steady[quantity].low:.3g}, allowed {limit:.3g})"
        for quantity, limit in limits.items()
        if steady[quantity].low > limit
    ]
    peaks = [max(sample.database + sample.log for sample in side.sampler.samples) for side in sides]
    if plan.resident and not all(side.evictions for side in sides):
        grown.append("no agent left memory")
    if peaks[1] > 1.5 * peaks[0] + flat.files:
        grown.append(f"the files of a server that is killed reach {peaks[1]:.1f} MB, of one that is not {peaks[0]:.1f}")
    return grown


def table(sides: list[Side], plan: Plan) -> str:
    """In Markdown."""
    lines = ["| server | quantity | level | slope an hour | 95% interval |", "|---|---|---:|---:|---:|"]
    for side in sides:
        for quantity, found in side.slopes(plan.warm_up if side.name == "steady" else 30.0).items():
            unit = QUANTITIES[quantity]
            lines.append(
                f"| {side.name} | {quantity} | {found.level:.3g} {unit} | {found.per_hour:+.3g} {unit} "
                f"| {found.low:+.3g} to {found.high:+.3g} |"
            )
    return "\n".join(lines)


def totals(sides: list[Side]) -> list[str]:
    return [
        f"{side.name}: {side.sampler.now:.0f} s, {len(side.sampler.kills)} kills, {side.transitions} transitions each learned "
        f"once, {side.load.episodes} episodes, {side.load.guests} agents created and deleted, {side.load.scrapes} scrapes, "
        f"{side.load.backups} backups, {side.evictions} evictions since the last kill"
        for side in sides
    ]


def _side(name: str, server: ServerProcess, plan: Plan, scratch: Path, began: float) -> Side:
    server.start()
    sampler = Sampler(server, began)
    place = scratch / f"backups-{name}"
    place.mkdir()
    return Side(name, server, sampler, Load(server, sampler.latencies, plan.steps, place, plan.seed, 3 * plan.resident))
