"""The Grafana dashboards by themselves: built from code, well formed, and with the answer in their first row."""

import copy
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.deploy.commands import run
from tests.deploy.dashboards import FILES, GRAFANA, Json, load, panels, problems, queries
from tests.deploy.prometheus_tools import Tools

RUNBOOK = Path(__file__).parents[2] / "docs" / "alerts.md"
each_dashboard = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def build(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, GRAFANA / "build.py", *arguments)


def test_the_files_are_what_the_code_builds(tmp_path: Path) -> None:
    """`--check` agrees, and names a file that somebody has changed or removed."""
    assert [path.stem for path in FILES] == ["agent", "fleet"]
    checked = build("--check")
    assert checked.returncode == 0, checked.stderr
    for path in FILES:
        shutil.copy(path, tmp_path)
    (tmp_path / "agent.json").write_text("{}", encoding="utf-8")
    (tmp_path / "fleet.json").unlink()
    refused = build("--check", "--out", tmp_path)
    assert refused.returncode == 1
    assert "agent.json" in refused.stderr
    assert "fleet.json" in refused.stderr
    assert build("--out", tmp_path).returncode == 0
    assert build("--check", "--out", tmp_path).returncode == 0


@each_dashboard
def test_a_dashboard_is_well_formed(path: Path) -> None:
    assert problems(load(path)) == []


MISTAKES: dict[str, Callable[[Json], object]] = {
    "overlap": lambda dashboard: dashboard["panels"][1]["gridPos"].update(y=dashboard["panels"][1]["gridPos"]["y"] + 3),
    "outside of the grid": lambda dashboard: dashboard["panels"][-1]["gridPos"].update(x=23),
    "number twice": lambda dashboard: dashboard["panels"][2].update(id=dashboard["panels"][1]["id"]),
    "no description": lambda dashboard: panels(dashboard)[0].update(description=""),
    "no unit": lambda dashboard: panels(dashboard)[0]["fieldConfig"]["defaults"].pop("unit"),
    "fixed source": lambda dashboard: panels(dashboard)[0]["targets"][0].update(datasource={"type": "prometheus", "uid": "x"}),
    "zero beside data": lambda dashboard: panels(dashboard)[0]["targets"][0].update(expr="sum by (a) (x) or vector(0)"),
    "no variable": lambda dashboard: dashboard["templating"]["list"].pop(),
}


@pytest.mark.parametrize("spoil", MISTAKES.values(), ids=MISTAKES)
@each_dashboard
def test_a_malformed_dashboard_would_be_noticed(path: Path, spoil: Callable[[Json], None]) -> None:
    dashboard = copy.deepcopy(load(path))
    spoil(dashboard)
    assert problems(dashboard) != []


@each_dashboard
def test_the_first_row_answers_whether_the_constraint_holds(path: Path) -> None:
    """Numbers only: the share of the budget and the regret, coloured before the budget breaks and red when it does."""
    heading, *first = [panel for panel in load(path)["panels"] if panel["gridPos"]["y"] <= 1]
    assert "Is the constraint" in heading["title"]
    assert {panel["type"] for panel in first} == {"stat"}
    assert sum(panel["gridPos"]["w"] for panel in first) == 24
    steps = {
        target["expr"].partition("{")[0]: [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        for panel in first
        for target in panel["targets"]
    }
    for share in ("max(safe_psrl:budget_used:ratio", "max(safe_psrl:budget_used:ratio30m"):
        before, broken = steps[share][1:]
        assert before < broken == 1.0
    before, broken = steps["max(safe_psrl_constraint_regret"][1:]
    assert before < 0 < broken < 0.01
    assert steps["max(safe_psrl:regret_bound_used:ratio"][-1] == 1.0


@each_dashboard
def test_every_query_is_promql(path: Path, tools: Tools, tmp_path: Path) -> None:
    """With Grafana's variables filled in, promtool reads them."""
    rules = [{"record": f"q{i}", "expr": filled(target["expr"])} for i, (_, target) in enumerate(queries(load(path)))]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    checked = run(tools.promtool, "check", "rules", file)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


def filled(expr: str) -> str:
    text = expr.replace("$__rate_interval", "1m").replace("$agent", "a")
    assert "$" not in text
    return text


def test_the_runbook_names_panels_that_exist() -> None:
    runbook = RUNBOOK.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", runbook))
    assert len(named) > 5
    assert named - {panel["title"] for path in FILES for panel in panels(load(path))} == set()


def test_provisioning_points_to_prometheus_and_to_a_directory() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "safe-psrl.yml").read_text(encoding="utf-8"))
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "safe-psrl.yml").read_text(encoding="utf-8"))
    assert [(entry["type"], entry["url"]) for entry in source["datasources"]] == [("prometheus", "http://127.0.0.1:9090")]
    assert [(entry["type"], entry["options"]["path"][0]) for entry in provider["providers"]] == [("file", "/")]
    assert source["apiVersion"] == provider["apiVersion"] == 1
