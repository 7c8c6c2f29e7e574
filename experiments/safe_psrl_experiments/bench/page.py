"""Tables of results in a Markdown page: `<!-- bench NAME begin -->` ... `<!-- bench NAME end -->` around each."""

import datetime as dt
import os
import platform
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
    begin, end = f"<!-- bench {name} begin -->", f"<!-- bench {name} end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"has no lines {begin} and {end}")
    return f"{before}{begin}\n{_table(document)}{end}{after}"


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
