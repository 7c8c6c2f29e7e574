"""The tables of docs/reliability.md, from the rows that runs left: `python -m tests.faults.report ROWS docs/reliability.md`.

Rows of a kind replace that kind's table; a kind without rows leaves its table as it is.
"""

import datetime as dt
import json
import os
import platform
import sqlite3
import sys
from pathlib import Path
from typing import Any, Final

from tests.faults.catalogue import FAULTS
from tests.faults.mutations import MUTATIONS

BEGIN, END = "<!-- {} begin -->", "<!-- {} end -->"
FAULT_HEAD: Final = (
    "| fault | rounds | acknowledged calls | unknown outcomes | lost | duplicated | time to recover: median, most "
    "| beside that |\n|---|---:|---:|---:|---:|---:|---:|---|\n"
)
MUTATION_HEAD: Final = "| mutation | fault that must catch it | caught | first finding |\n|---|---|---|---|\n"


def fault_table(rows: list[dict[str, Any]]) -> str:
    order = [kind.__name__ for kind in FAULTS]
    rows.sort(key=lambda row: order.index(row["fault"]))
    lines = [
        f"| {row['title']} | {row['rounds']} | {row['acknowledged']:,} | {row['unknown']:,} | {row['lost']} "
        f"| {row['duplicated']} | {row['recovery_median']:.2f} s, {row['recovery_most']:.2f} s | {row['note']} |\n"
        for row in rows
    ]
    seeds = ", ".join(sorted({str(row["seed"]) for row in rows}))
    total = sum(row["acknowledged"] for row in rows)
    return f"{machine()} Seed {seeds}; {total:,} acknowledged calls.\n\n{FAULT_HEAD}{''.join(lines)}"


def mutation_table(rows: list[dict[str, Any]]) -> str:
    order = [mutation.name for mutation in MUTATIONS]
    rows.sort(key=lambda row: order.index(row["name"]))
    lines = [
        f"| {row['name']} | {row['fault']} | {'yes' if row['caught'] else '**no**'} | {_shortened(row['finding'])} |\n"
        for row in rows
    ]
    return f"{MUTATION_HEAD}{''.join(lines)}"


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[2]
    return (
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {platform.system()} {platform.release()} on {platform.machine()}, "
        f"{os.cpu_count()} cores (load average {load:.1f}), {memory:.0f} GB, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}."
    )


def placed(document: str, name: str, table: str) -> str:
    """`document` with `table` between the marks of `name`."""
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"there is no place for the table of {name}")
    return f"{before}{begin}\n{table}{end}{after}"


def _shortened(finding: str) -> str:
    _, _, what = finding.partition("findings: ")
    what = (what or finding).replace("|", "/")
    return what if len(what) <= 140 else f"{what[:140]}…"


def main(rows: Path, document: Path) -> None:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(rows.glob("*.json"))]
    text = document.read_text(encoding="utf-8")
    if faults := [row for row in found if "rounds" in row]:
        text = placed(text, "faults", fault_table(faults))
    if mutations := [row for row in found if "caught" in row]:
        text = placed(text, "mutations", mutation_table(mutations))
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
