"""The table of docs/security.md, from the rows that a run left: `python -m tests.attacks.report ROWS docs/security.md`."""

import json
import sys
from pathlib import Path

from tests.attacks.scene import MOST_TIMES, Row
from tests.faults.report import machine, placed

HEAD = "| attack | p99 without | p99 with | ratio | longest call | memory of the server |\n|---|---:|---:|---:|---:|---:|\n"


def table(rows: list[Row]) -> str:
    lines = [
        f"| {row.attack} | {1e3 * row.normal:.1f} ms | {1e3 * row.attacked:.1f} ms | {_marked(row.times)} "
        f"| {1e3 * row.longest:.0f} ms | +{row.memory / 2**20:.0f} MB |\n"
        for row in sorted(rows, key=lambda row: row.attack)
    ]
    return f"{machine()}\n\n{HEAD}{''.join(lines)}"


def _marked(times: float) -> str:
    return f"{times:.1f}" if times <= MOST_TIMES else f"**{times:.1f}**"


def main(rows: Path, document: Path) -> None:
    found = [Row(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(rows.glob("*.json"))]
    written = table(found)
    document.write_text(placed(document.read_text(encoding="utf-8"), "attacks", written), encoding="utf-8")
    print(written)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
