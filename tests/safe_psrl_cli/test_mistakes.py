"""A user's mistake is one line on standard error and exit code 2."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MISTAKES = [
    (["experiment", "nowhere"], "streaming-buffer, inventory, factored-toy"),
    (["experiment", "random:states=x"], "states=N"),
    (["experiment", "random:states=1000000"], "states = 1000000"),
    (["experiment", "absent.toml"], "absent.toml"),
    (["experiment"], "Missing argument"),
    (["experiment", "inventory", "--set", "safe-psrl.pesimism_coefficient=1"], "did you mean pessimism_coefficient?"),
    (["experiment", "inventory", "--set", "safe-psrl.pessimism_coefficient=strong"], "one of theorem, published, literal"),
    (["experiment", "inventory", "--set", "safe-psrl.pessimism_coefficient=nan"], "pessimism_coefficient = 'nan'"),
    (["experiment", "inventory", "--set", "pessimism_coefficient=1"], "write ALGORITHM.PARAMETER=VALUE"),
    (["experiment", "inventory", "--set", "safe-psrl.cap_pessimism"], "write ALGORITHM.PARAMETER=VALUE"),
    (["experiment", "inventory", "--set", "safe-psrl.=1"], "write ALGORITHM.PARAMETER=VALUE"),
    (["experiment", "inventory", "--set", "dope.delta=1"], "parameters for = 'dope'"),
    (["experiment", "inventory", "--algorithms", "safe-prsl"], "did you mean safe-psrl?"),
    (["experiment", "inventory", "--algorithms", ","], "algorithms"),
    (["experiment", "inventory", "--episodes", "0"], "must be at least 1"),
    (["experiment", "streaming-buffer:depart=1"], "write streaming-buffer:fast=PROBABILITY"),
    (["experiment", "streaming-buffer", "--then", "streaming-buffer"], "write ENVIRONMENT@EPISODES"),
    (["experiment", "streaming-buffer", "--then", "inventory@5"], "they cannot change"),
    (["experiment", "streaming-buffer", "--walk", "arrival=0.1@5"], "fast, slow, departure may walk"),
    (["experiment", "inventory", "--set", "safe-psrl.drift.memory=5"], "did you mean memory_visits?"),
    (["experiment", "inventory", "--episodes", "many"], "--episodes"),
    (["experiment", "inventory", "--jobs", "0"], "--jobs"),
    (["experiment", "inventory", "--out", "/dev/null/results"], "/dev/null/results"),
    (["experiment", "inventory", "--frobnicate"], "--frobnicate"),
    (["calibrate", "nowhere"], "streaming-buffer, inventory, factored-toy"),
    (["calibrate", "inventory", "--confidences", "high"], "write numbers separated by commas"),
    (["calibrate", "inventory", "--confidences", "0.4"], "confidence = 0.4"),
    (["calibrate", "inventory", "--kernels", "1"], "must be at least 2"),
    (["experimnt"], "Did you mean 'experiment'?"),
    (["spec", "show", "nowhere"], "environment = 'nowhere'"),
    (["spec", "check", "absent.json"], "No such file"),
    (["bench", "learn", "--rounds", "0"], "--rounds"),
    (["simulate", "--agent", "a"], "Missing argument"),
    (["simulate", "lte-cell", "--ues", "0"], "--ues"),
    (["simulate", "base-stations", "--agents-per", "street"], "--agents-per"),
    (["simulate", "base-stations", "--devices", "1001"], "--devices"),
]
MISTAKES_AT_A_SERVICE = [  # which are found once the service is
    (["simulate", "nowhere", "--agent", "a"], "environment = 'nowhere'"),
    (["simulate", "--agent", "a", "nowhere"], "environment = 'nowhere'"),
    (["simulate", "streaming-buffer", "--agent", "a", "--then", "inventory@5"], "they cannot change"),
]


def assert_is_one_line(ended: Any, part: str) -> None:
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("safe-psrl: ")
    assert ended.err.count("\n") == 1
    assert part in ended.err


@pytest.mark.parametrize(("arguments", "part"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_a_mistake_is_one_line(safe_psrl: Callable[..., Any], arguments: list[str], part: str) -> None:
    assert_is_one_line(safe_psrl(*arguments), part)


@pytest.mark.parametrize(
    ("arguments", "part"), MISTAKES_AT_A_SERVICE, ids=[" ".join(arguments) for arguments, _ in MISTAKES_AT_A_SERVICE]
)
def test_a_mistake_at_a_service_is_one_line(
    safe_psrl: Callable[..., Any], server: str, arguments: list[str], part: str
) -> None:
    assert_is_one_line(safe_psrl(*arguments, "--target", server), part)


@pytest.mark.parametrize(
    "arguments",
    [["experiment", "nowhere"], ["experiment", "inventory", "--set", "x"], ["experiment", "inventory", "--out", "/dev/null/x"]],
    ids=" ".join,
)
def test_a_mistake_is_one_line_in_a_separate_process(installed_safe_psrl: Callable[..., Any], arguments: list[str]) -> None:
    assert_is_one_line(installed_safe_psrl(*arguments), arguments[-1].split("=", maxsplit=1)[0])


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_that_is_malformed(safe_psrl: Callable[..., Any], tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine.{suffix}"
    path.write_text("num_states = = 3\n{", encoding="utf-8")
    assert_is_one_line(safe_psrl("experiment", str(path)), f"{suffix} document")


def test_a_budget_that_no_policy_keeps_is_reported_with_the_least_cost(safe_psrl: Callable[..., Any], tmp_path: Path) -> None:
    constraint = {"name": "toll", "cost": [[0.5, 1.0]], "cost_budget": 1.0, "satisfiable_cost": 0.5}
    document = {"num_states": 1, "num_actions": 2, "horizon": 3, "reward": [[0, 1]], "constraints": [constraint]}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document | {"transitions": [[[1.0], [1.0]]]}), encoding="utf-8")
    for command in ("experiment", "check"):
        ended = safe_psrl(*(["spec"] if command == "check" else []), command, str(path))
        assert_is_one_line(ended, "no policy keeps the cost budget 1: the least achievable cost is 1.5")


def test_a_defect_is_not_reported_as_a_users_mistake(safe_psrl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(_: str) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("safe_psrl_testbed.scenario_named", break_down)
    with pytest.raises(ValueError, match="broken"):
        safe_psrl("spec", "check", "inventory")


def test_a_simulation_without_ns3_reports_how_to_install_it(
    safe_psrl: Callable[..., Any], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert_is_one_line(safe_psrl("simulate", "lte-cell", "--target", server), "pip install 'safe-psrl[lte]'")


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["serve"], "uvloop", "server"),
        (["bench", "store", "--store", "postgresql://127.0.0.1:1/x"], "psycopg", "postgres"),
    ],
)
def test_a_missing_extra_is_named(
    safe_psrl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str], module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert_is_one_line(safe_psrl(*arguments), f"safe-psrl: {arguments[0]} needs {module}: pip install 'safe-psrl[{extra}]'")
