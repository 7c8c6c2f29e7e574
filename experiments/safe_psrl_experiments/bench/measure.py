"""Measurements in turn, so that noise of the machine affects all of them alike; their results, and tables of results."""

import datetime as dt
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal, Protocol
from urllib.request import Request, urlopen


@dataclass(frozen=True)
class Result:
    """A figure against its limit. `ratio` is value / limit; `bar` is its requirement, or None.

    `times` and `limit_times` are what the two are the medians of, where they were kept.
    """

    name: str
    value: float
    unit: str
    limit: float
    limit_name: str
    ratio: float
    bar: str | None
    ok: bool
    times: tuple[float, ...] = ()
    limit_times: tuple[float, ...] = ()


class Report(Protocol):
    """Receives what a bench measures now and, where it is known, how many of how many parts are done."""

    def __call__(self, what: str, done: int = 0, total: int | None = None) -> None: ...


def silent(what: str, done: int = 0, total: int | None = None) -> None:
    """No report."""


Bar = tuple[Literal["<=", ">="], float]


def judged(name: str, value: float, limit: float, limit_name: str, unit: str = "us", bar: Bar | None = None) -> Result:
    """A figure with its ratio to `limit`, which must be at most or at least the number of `bar`."""
    ratio = value / limit
    ok = bar is None or (ratio <= bar[1] if bar[0] == "<=" else ratio >= bar[1])
    return Result(name, value, unit, limit, limit_name, ratio, f"{bar[0]} {bar[1]:g}" if bar else None, ok)


def judged_times(
    name: str, times: list[float], limit_times: list[float], limit_name: str, unit: str = "us", bar: Bar | None = None
) -> Result:
    """The same of medians, with what they are the medians of."""
    result = judged(name, median(times), median(limit_times), limit_name, unit, bar)
    return replace(result, times=tuple(times), limit_times=tuple(limit_times))


def interleaved(tasks: dict[str, tuple[Callable[[], object], int]], rounds: int) -> dict[str, float]:
    """Median microseconds of one repetition. A task is a function and the number of repetitions that one call makes."""
    return {name: median(times) for name, times in interleaved_times(tasks, rounds).items()}


def interleaved_times(
    tasks: dict[str, tuple[Callable[[], object], int]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Microseconds of one repetition, round by round."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, (task, repetitions) in tasks.items():
            began = clock()
            task()
            if number:  # the first round warms up
                times[name].append((clock() - began) / repetitions * 1e6)
    return times


def percentile(times: list[float]) -> float:
    """The 99th."""
    return sorted(times)[len(times) * 99 // 100]


def fetch(url: str) -> bytes:
    """The service's metrics, as Prometheus requests them."""
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    with urlopen(Request(url, headers=headers), timeout=60) as response:  # noqa: S310  # an address that we started
        content: bytes = response.read()
    return content


def process_kilobytes(field: str, pid: int | str = "self") -> int:
    """Memory of one process: VmRSS is its resident memory, VmHWM the most that it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def processor_seconds(pid: int) -> float:
    """Processor time of one process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def as_json(results: list[Result]) -> dict[str, Any]:
    return {"machine": machine(), "results": [asdict(result) for result in results]}


def machine() -> str:
    """Where and with what something was measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "protobuf", "numpy", "numba"))
    return (
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {platform.system()} {platform.release()}, {_processor()}, {os.cpu_count()} cores "
        f"(load average {os.getloadavg()[0]:.1f} at the end), {memory:.0f} GB, Python {platform.python_version()}, {parts}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


HEAD = "| what | measured | spread | limit | ratio | bar |\n|---|---:|---:|---|---:|---|\n"


def fill_page(page: str, name: str, document: dict[str, Any]) -> str:
    """The Markdown `page` with a table between `<!-- bench NAME begin -->` and `<!-- bench NAME end -->`.

    Raises ValueError if the page has no place for it.
    """
    begin, end = f"<!-- bench {name} begin -->", f"<!-- bench {name} end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"has no lines {begin} and {end}")
    rows = ""
    for result in document["results"]:
        verdict = "" if result["bar"] is None else f"{result['bar']}: {'met' if result['ok'] else '**missed**'}"
        rows += f"| {' | '.join([*cells(result), verdict])} |\n"
    return f"{before}{begin}\n{document['machine']}.\n\n{HEAD}{rows}{end}{after}"


def cells(result: dict[str, Any]) -> list[str]:
    """A result as text: name, value, spread, limit and ratio."""
    times = result["times"]
    spread = f"{min(times):,.1f} to {max(times):,.1f}" if times else ""
    limit = f"{result['limit']:,.1f} {result['unit']}: {result['limit_name']}"
    return [result["name"], f"{result['value']:,.1f} {result['unit']}", spread, limit, f"{result['ratio']:.2f}"]
