"""The alert rules by themselves: promtool's cases hold, each alert has both kinds, and the cases notice a changed rule."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.commands import run
from tests.deploy.prometheus_tools import CONFIG, RULES, SPEED, Tools, sped_up

CASES = sorted((Path(__file__).parent / "alerts").glob("*.yml"))
RUNBOOK = Path(__file__).parents[2] / "docs" / "alerts.md"
TEXT = RULES.read_text(encoding="utf-8")
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(TEXT)["groups"] for rule in group["rules"] if "alert" in rule}
NAMED = re.compile(r'ALERTS\{alertname="(\w+)", alertstate="firing"\}')

# A small change of a rule that some case must notice: alert, what is written, what would be written.
MUTATIONS = [
    ("SafePsrlConstraintRegretRising", "regret > 0 and", "regret > -1 and"),
    ("SafePsrlConstraintRegretRising", "[30m]) > 0", "[30m]) >= 0"),
    ("SafePsrlConstraintRegretRising", "for: 10m", "for: 8m"),
    ("SafePsrlConstraintRegretAboveBound", "> clamp_min", ">= clamp_min"),
    (
        "SafePsrlConstraintRegretAboveBound",
        "clamp_min(safe_psrl_constraint_regret_bound, 0)",
        "safe_psrl_constraint_regret_bound",
    ),
    ("SafePsrlPredictedCostAboveBudget", "> safe_psrl_cost_budget", ">= safe_psrl_cost_budget"),
    ("SafePsrlPredictedCostAboveBudget", "avg_over_time(safe_psrl_predicted_cost[15m])", "safe_psrl_predicted_cost"),
    ("SafePsrlPredictedCostAboveBudget", "paused == 1", "paused == 2"),
    ("SafePsrlNoCertificate", "* (1 + 1e-6)", "* 1"),
    ("SafePsrlNoCertificate", "paused == 1", "paused == 2"),
    ("SafePsrlNoCertificate", "for: 30m", "for: 28m"),
    ("SafePsrlDualVariableAboveBound", "> (safe", ">= (safe"),
    ("SafePsrlDualVariableAboveBound", "bound > 0", "bound > -1"),
    ("SafePsrlDriftDetected", "[1h]", "[15m]"),
    ("SafePsrlDriftDetected", "[1h]", "[2h]"),
    ("SafePsrlDriftDetected", "> 0", ">= 0"),
    ("SafePsrlPausedByGuard", "== 1", ">= 0"),
    ("SafePsrlPlanInfeasible", "[15m]", "[5m]"),
    ("SafePsrlPlanInfeasible", "for: 30m", "for: 25m"),
    ("SafePsrlPlansSlow", "> 5", "> 4.9"),
    ("SafePsrlPlansSlow", "0.9,", "0.89,"),
    ("SafePsrlFallbackActive", "for: 30m", "for: 29m"),
    ("SafePsrlFallbackActive", "== 1", "== 0"),
    ("SafePsrlTargetDown", ' or absent(up{job="safe-psrl"})', ""),
    ("SafePsrlTargetDown", "for: 2m", "for: 1m"),
    ("SafePsrlErrorRate", "> 0.05", "> 0.0499"),
    ("SafePsrlErrorRate", "> 0.05", "> 0.06"),
    ("SafePsrlNoTransitions", "> 600", "> 599"),
    ("SafePsrlNoTransitions", "safe_psrl_open_episodes > 0 or ", ""),
    ("SafePsrlNoTransitions", " or delta(safe_psrl_observed_transitions[1h]) > 0", ""),
    ("SafePsrlNoTransitions", "seconds > 0", "seconds >= 0"),
    ("SafePsrlNoTransitions", "paused == 1", "paused == 2"),
    ("SafePsrlSeriesFolded", "> 0", "> 1"),
    ("SafePsrlSlowCommits", "> 0.1", "> 0.09"),
    ("SafePsrlSlowCommits", "0.99,", "0.98,"),
    ("SafePsrlSnapshotStale", "age_seconds > 900", "age_seconds > 899"),
    ("SafePsrlSnapshotStale", "created_timestamp_seconds > 900", "created_timestamp_seconds > 899"),
    ("SafePsrlSnapshotStale", "unless safe_psrl_snapshot_age_seconds", ""),
    ("SafePsrlQuarantine", "> 0", "> 1"),
    ("SafePsrlDiskFilling", "86400", "93600"),
    ("SafePsrlDiskFilling", "for: 1h", "for: 45m"),
    ("SafePsrlDiskLow", "< 1073741824", "<= 1073741824"),
    ("SafePsrlBackupOld", "> 2 *", "> 1.9 *"),
    ("SafePsrlBackupOld", "> 2 *", "> 2.1 *"),
    ("SafePsrlBackupOld", "for: 10m", "for: 9m"),
]


def test_promtool_accepts_configuration_and_rules(tools: Tools) -> None:
    for command, file in (("config", CONFIG), ("rules", RULES)):
        checked = run(tools.promtool, "check", command, file)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_case_holds(tools: Tools) -> None:
    """Each alert fires where it must, and is silent just inside its edge."""
    tested = run(tools.promtool, "test", "rules", *CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("alert", "written", "changed"), MUTATIONS)
def test_the_cases_notice_a_changed_rule(tools: Tools, tmp_path: Path, alert: str, written: str, changed: str) -> None:
    """A threshold, a window or a condition that moves turns a case red."""
    (tmp_path / RULES.name).write_text(mutated(alert, written, changed), encoding="utf-8")
    assert run(tools.promtool, "check", "rules", tmp_path / RULES.name).returncode == 0, "it is still a valid rule"
    copies = []
    for case in CASES:
        content = yaml.safe_load(case.read_text(encoding="utf-8"))
        if tests := [test for test in content["tests"] if alert in named(test)]:
            copies.append(tmp_path / case.name)
            copies[-1].write_text(yaml.safe_dump({**content, "rule_files": [RULES.name], "tests": tests}), encoding="utf-8")
    tested = run(tools.promtool, "test", "rules", *copies)
    assert tested.returncode == 1, tested.stdout
    assert alert in tested.stdout + tested.stderr


def mutated(alert: str, written: str, changed: str) -> str:
    before, name, rest = TEXT.partition(f"- alert: {alert}\n")
    block, end, after = rest.partition("labels:")
    assert block.count(written) == 1
    return before + name + block.replace(written, changed) + end + after


def test_every_alert_is_changed_by_some_mutation() -> None:
    assert {alert for alert, _, _ in MUTATIONS} == set(ALERTS)


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    fires: dict[str, dict[str, Any]] = {}
    silent: set[str] = set()
    for case in CASES:
        for test in yaml.safe_load(case.read_text(encoding="utf-8"))["tests"]:
            for alert in named(test):
                samples = [sample for asked in test["promql_expr_test"] for sample in asked["exp_samples"]]
                if samples:
                    fires.setdefault(alert, samples[0])
                else:
                    silent.add(alert)
    assert set(fires) == set(ALERTS)
    assert silent == set(ALERTS)
    for alert, sample in fires.items():  # what annotations speak of must be there, or they would have a gap
        spoken = set(re.findall(r"\$labels\.(\w+)", str(ALERTS[alert]["annotations"])))
        assert spoken <= set(re.findall(r'(\w+)="', sample["labels"])), alert


def named(test: dict[str, Any]) -> set[str]:
    return {found[1] for asked in test["promql_expr_test"] if (found := NAMED.search(asked["expr"]))}


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: str) -> None:
    """Severity, summary, description, and a section of the runbook that exists."""
    rule = ALERTS[alert]
    assert re.fullmatch(r"SafePsrl([A-Z][a-z]+)+", alert)
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert 0 < len(rule["annotations"]["summary"]) < len(rule["annotations"]["description"])
    assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{alert.lower()}"
    section = sections().get(alert, "")
    assert [word for word in ("**Means.**", "**Look at**", "**Do**") if word not in section] == []


def test_the_runbook_has_no_section_for_what_is_no_alert() -> None:
    assert set(sections()) == set(ALERTS)


def sections() -> dict[str, str]:
    """The runbook's, by heading."""
    runbook = RUNBOOK.read_text(encoding="utf-8")
    return dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", runbook, re.DOTALL | re.MULTILINE))


def test_the_page_lists_every_alert_with_its_severity() -> None:
    rows = re.findall(r"^- \[(\w+)\]\(#(\w+)\), (\w+): ", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {alert: severity for alert, _, severity in rows} == {
        alert: rule["labels"]["severity"] for alert, rule in ALERTS.items()
    }
    assert [anchor for _, anchor, _ in rows] == [alert.lower() for alert in ALERTS]


def test_speeding_up_changes_durations_and_nothing_else() -> None:
    """So that the rules that a real Prometheus evaluates in the other tests are these rules."""
    duration = r"(?<![\w:])\d+(ms|s|m|h)\b"
    assert re.sub(duration, "", sped_up(TEXT)) == re.sub(duration, "", TEXT)
    assert SPEED == 30
    assert sped_up("for: 10m\nexpr: x[1h] > 600 and y[30m]\n") == "for: 20000ms\nexpr: x[120000ms] > 600 and y[60000ms]\n"
    assert sped_up("scrape_interval: 15s\n") == "scrape_interval: 500ms\n"
