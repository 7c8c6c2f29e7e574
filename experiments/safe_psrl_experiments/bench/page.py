"""Tables of results in a Markdown page: `<!-- bench NAME begin -->` ... `<!-- bench NAME end -->` around each.

That of several runs has `bench NAME runs` instead.
"""

import datetime as dt
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HEAD = "| what | measured | spread | limit | ratio | bar |\n|---|---:|---:|---|---:|---|\n"


def machine() -> str:
    """Where and with what something was measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "protobuf", "numpy", "numba"))
    return (
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {platform.system()} {platform.release()}, {_processor()}, {os.cpu_count()} cores "
        f"(load average {os.getloadavg()[0]:.1f} at the end), {memory:.0f} GB, Python {platform.python_version()}, {parts}"
    )


def fill_page(page: str, name: str, document: dict[str, Any]) -> str:
    """`page` with the table of `name` made anew. Raises ValueError if the page has no place for it."""
    return _between(page, f"bench {name}", _table(document))


def fill_runs(page: str, name: str, documents: Sequence[dict[str, Any]]) -> str:
    """The same with the ratios of several runs that have the same bars, a row each."""
    barred = [[result for result in document["results"] if result["bar"] is not None] for document in documents]
    headings = [f"{result['name']} ({result['bar']})" for result in barred[0]]
    if any([f"{result['name']} ({result['bar']})" for result in results] != headings for results in barred):
        raise ValueError("has runs of other figures than the first one's")
    head = f"| run | {' | '.join(headings)} |\n|---:|{'---:|' * len(headings)}\n"
    cells = [[f"{result['ratio']:.2f}" if result["ok"] else f"**{result['ratio']:.2f}**" for result in run] for run in barred]
    rows = "".join(f"| {number} | {' | '.join(run)} |\n" for number, run in enumerate(cells, 1))
    return _between(page, f"bench {name} runs", f"{documents[-1]['machine']}.\n\n{head}{rows}")


def _between(page: str, mark: str, text: str) -> str:
    begin, end = f"<!-- {mark} begin -->", f"<!-- {mark} end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"has no lines {begin} and {end}")
    return f"{before}{begin}\n{text}{end}{after}"


def _table(document: dict[str, Any]) -> str:
    rows = "".join(f"| {' | '.join(_cells(result))} |\n" for result in document["results"])
    return f"{document['machine']}.\n\n{HEAD}{rows}"


def _cells(result: dict[str, Any]) -> list[str]:
    bar = result["bar"]
    verdict = "" if bar is None else f"{bar}: {'met' if result['ok'] else '**missed**'}"
    times = result["times"]
    spread = f"{min(times):,.1f} to {max(times):,.1f}" if times else ""
    limit = f"{result['limit']:,.1f} {result['unit']}: {result['limit_name']}"
    return [result["name"], f"{result['value']:,.1f} {result['unit']}", spread, limit, f"{result['ratio']:.2f}", verdict]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
