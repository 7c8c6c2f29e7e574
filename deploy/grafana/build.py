"""Writes the Grafana dashboards; with `--check`, checks that the files are up to date."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import fleet
import single_agent
from panels import SOURCE, Json, Row, laid_out

DIRECTORY: Final = Path(__file__).parent / "dashboards"
SCHEMA_VERSION: Final = 39  # Grafana 11
REFRESH: Final = "30s"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--out", type=Path, default=DIRECTORY, help="where the files are")
    options = parser.parse_args(arguments)
    stale = [path.name for path, text in files(options.out).items() if not path.exists() or path.read_text("utf-8") != text]
    if not options.check:
        options.out.mkdir(parents=True, exist_ok=True)
        for path, text in files(options.out).items():
            path.write_text(text, encoding="utf-8")
    elif stale:
        sys.exit(f"not what deploy/grafana/build.py writes: {', '.join(stale)}; run it and commit")


def files(directory: Path) -> dict[Path, str]:
    dashboards = {
        "fleet": dashboard("safe-psrl-fleet", "Safe PSRL: fleet", fleet.rows(), every_agent=True),
        "agent": dashboard("safe-psrl-agent", "Safe PSRL: agent", single_agent.rows(), every_agent=False),
    }
    return {directory / f"{name}.json": json.dumps(content, indent=2) + "\n" for name, content in dashboards.items()}


def dashboard(uid: str, title: str, rows: Sequence[Row], *, every_agent: bool) -> Json:
    return {
        "uid": uid,
        "title": title,
        "tags": ["safe-psrl"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": REFRESH,
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [data_source(), agent(every_agent)]},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "Safe PSRL", "tags": ["safe-psrl"], "keepTime": True, "asDropdown": False}],
        "panels": laid_out(rows),
    }


def data_source() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}


def agent(every: bool) -> Json:
    """The names are those that are exported now. In the fleet any number can be chosen, and all are to begin with."""
    query = "label_values(safe_psrl_episode_index, agent)"
    variable: Json = {
        "name": "agent",
        "label": "Agent",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "agent"},
        "refresh": 2,  # with every change of the time range
        "sort": 1,
        "multi": every,
        "includeAll": every,
    }
    if every:
        variable |= {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return variable


if __name__ == "__main__":
    main()
