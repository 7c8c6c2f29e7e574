"""The few kinds of panel that the dashboards have, as Grafana's JSON model wants them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

Json = dict[str, Any]

SOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
GREEN: Final = "green"
YELLOW: Final = "yellow"
RED: Final = "red"

Step = tuple[float, str]
SHARE_OF_BUDGET: Final[tuple[Step, ...]] = ((0.95, YELLOW), (1.0, RED))  # red when it breaks, yellow before
BUDGETS_OVER: Final[tuple[Step, ...]] = ((-1.0, YELLOW), (0.001, RED))  # yellow when less than an episode's budget is left
SHARE_OF_BOUND: Final[tuple[Step, ...]] = ((0.5, YELLOW), (1.0, RED))
NONE_WANTED: Final[tuple[Step, ...]] = ((1.0, RED),)
WORTH_A_LOOK: Final[tuple[Step, ...]] = ((1.0, YELLOW),)


@dataclass(frozen=True)
class Query:
    """An expression, and what its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Row:
    """Panels side by side, under a heading; those that have no room go into the next line."""

    title: str
    height: int
    panels: Sequence[Json]


def stat(
    title: str,
    description: str,
    expr: str,
    unit: str = "none",
    steps: Sequence[Step] = (),
    *,
    width: int = 4,
    decimals: int | None = None,
    mappings: Sequence[Json] = (),
    legend: str = "",
) -> Json:
    """One number that is coloured as a whole, readable from across the room. With a legend: the label's text instead."""
    panel = _panel("stat", title, description, [Query(expr, legend)], unit, steps, width)
    panel["fieldConfig"]["defaults"] |= {"mappings": list(mappings), "noValue": "none"}
    if decimals is not None:
        panel["fieldConfig"]["defaults"]["decimals"] = decimals
    panel["options"] = {
        "colorMode": "background",
        "graphMode": "none" if legend else "area",
        "textMode": "name" if legend else "value",
        "justifyMode": "center",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel


def over_time(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str = "none",
    steps: Sequence[Step] = (),
    *,
    width: int = 8,
    logarithmic: bool = False,
) -> Json:
    """Lines; the steps are drawn across them."""
    panel = _panel("timeseries", title, description, queries, unit, steps, width)
    panel["fieldConfig"]["defaults"]["custom"] = {
        "drawStyle": "line",
        "lineWidth": 2,
        "fillOpacity": 0,
        "showPoints": "never",
        "spanNulls": False,
        "scaleDistribution": {"type": "log", "log": 10} if logarithmic else {"type": "linear"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    panel["options"] = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def table(title: str, description: str, columns: Sequence[tuple[str, str, str, Sequence[Step]]], link: Json) -> Json:
    """A line for each agent and constraint; a column is (name, expression, unit, steps). `link` opens from the agent's name."""
    panel = _panel("table", title, description, [Query(expr) for _, expr, _, _ in columns], "none", (), 12)
    for target in panel["targets"]:
        target |= {"format": "table", "instant": True, "range": False}
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [
                {"id": "unit", "value": unit},
                {"id": "thresholds", "value": _thresholds(steps)},
                *([{"id": "custom.cellOptions", "value": {"type": "color-background"}}] if steps else []),
            ],
        }
        for name, _, unit, steps in columns
    ]
    overrides.append({"matcher": {"id": "byName", "options": "agent"}, "properties": [{"id": "links", "value": [link]}]})
    panel["fieldConfig"]["overrides"] = overrides
    names = {f"Value #{target['refId']}": column[0] for target, column in zip(panel["targets"], columns, strict=True)}
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True, "job": True, "__name__": True},
                "renameByName": names,
                "indexByName": {},
            },
        },
    ]
    panel["options"] = {"showHeader": True, "sortBy": [{"displayName": columns[0][0], "desc": True}]}
    return panel


def laid_out(rows: Sequence[Row]) -> list[Json]:
    """All panels with their place and number: each row below the one before."""
    return list(_placed(rows))


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    numbers, top = count(1), 0
    for row in rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        yield {"id": next(numbers), "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        top, left = top + 1, 0
        for panel in row.panels:
            width = panel["width"]
            if left + width > COLUMNS:
                top, left = top + row.height, 0
            place = {"h": row.height, "w": width, "x": left, "y": top}
            yield {"id": next(numbers), **{key: value for key, value in panel.items() if key != "width"}, "gridPos": place}
            left += width
        top += row.height


def _panel(
    kind: str, title: str, description: str, queries: Sequence[Query], unit: str, steps: Sequence[Step], width: int
) -> Json:
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "range": True,
            }
            for i, query in enumerate(queries)
        ],
        "fieldConfig": {
            "defaults": {"unit": unit, "color": _colour(kind), "thresholds": _thresholds(steps)},
            "overrides": [],
        },
        "width": width,
    }


def _colour(kind: str) -> Json:
    return {"mode": "palette-classic"} if kind == "timeseries" else {"mode": "thresholds"}


def _thresholds(steps: Sequence[Step]) -> Json:
    first: Json = {"color": GREEN, "value": None}
    return {"mode": "absolute", "steps": [first, *({"color": colour, "value": value} for value, colour in steps)]}
