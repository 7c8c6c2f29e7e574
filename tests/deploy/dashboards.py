"""The dashboards as the tests see them: their panels and queries, and what is wrong with them."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from tests.deploy.prometheus_tools import DEPLOY

Json = dict[str, Any]
GRAFANA: Final = DEPLOY / "grafana"
FILES: Final = sorted((GRAFANA / "dashboards").glob("*.json"))
COLUMNS: Final = 24


def load(path: Path) -> Json:
    content: Json = json.loads(path.read_text(encoding="utf-8"))
    return content


def panels(dashboard: Json) -> list[Json]:
    """All that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: Json) -> Iterator[tuple[str, Json]]:
    """Each target, with its panel's title."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target


def problems(dashboard: Json) -> list[str]:
    """What Grafana would refuse or show wrongly, and what a reader would miss."""
    found = [f"no {key}" for key in ("uid", "title", "time", "refresh") if not dashboard.get(key)]
    if dashboard.get("schemaVersion", 0) < 39:
        found.append("an old schema")
    if [variable["name"] for variable in dashboard["templating"]["list"]] != ["datasource", "agent"]:
        found.append("other variables than datasource and agent")
    numbers = Counter(panel["id"] for panel in dashboard["panels"])
    found += [f"number {number} is used {times} times" for number, times in numbers.items() if times > 1]
    found += [f"{a['title']} and {b['title']} overlap" for a, b in combinations(dashboard["panels"], 2) if overlap(a, b)]
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] < 0 or place["x"] + place["w"] > COLUMNS or min(place["w"], place["h"]) < 1:
            found.append(f"{panel['title']} is outside of the grid")
    for panel in panels(dashboard):
        found += [f"{panel['title']} {problem}" for problem in panel_problems(panel)]
    return found


def panel_problems(panel: Json) -> Iterator[str]:
    if len(panel.get("description", "")) < 10:
        yield "has no description"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield "has no unit"
    sources = [panel.get("datasource"), *(target.get("datasource") for target in panel["targets"])]
    if any(source != {"type": "prometheus", "uid": "${datasource}"} for source in sources):
        yield "does not use the chosen datasource"
    names = [target["refId"] for target in panel["targets"]]
    if not names or len(set(names)) < len(names):
        yield "has no queries, or some of the same name"
    if any(" by (" in target["expr"] and "or vector(0)" in target["expr"] for target in panel["targets"]):
        yield "has a zero beside the data, not in its place: `or on () vector(0)` is meant"
    steps = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    if steps[0] is not None or steps[1:] != sorted(steps[1:]):
        yield "has thresholds that do not rise"


def overlap(one: Json, other: Json) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    return not beside and not below
