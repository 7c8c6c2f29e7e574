"""`safe-psrl spec check`: as strict as a creation, and what it reports."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from safe_psrl import SafePsrl, SafePsrlOptions
from safe_psrl.problem.documents import spec_to_document
from safe_psrl.problem.options import METHODS, PESSIMISM_PRESETS
from safe_psrl.problem.presets import preset


def test_a_check_reports_the_bounds_and_the_optimum(safe_psrl: Callable[..., Any]) -> None:
    ended = safe_psrl("spec", "check", "streaming-buffer", "--set", "method=published")
    assert ended.code == 0
    assert "10 states, 2 actions, horizon 10: valid" in ended.out
    assert "cost budget 5, satisfiable cost 1" in ended.out
    assert "from episode 1,000,000 on" in ended.out  # C'' = 80 * 10^3 * 10^2 * 2 / 4^2
    assert "exact optimum: reward 3.253296 at cost 5.000000" in ended.out
    assert "pessimism 61.18 in the first episode; below the budget from episode 259 on" in ended.out
    assert re.search(r"a plan takes [\d.]+ ms here", ended.out)
    assert "an agent needs 1.6 kB" in ended.out
    assert "assumed: some policy has the satisfiable cost: certain, whatever the kernel" in ended.out
    assert "warning" not in ended.out


def test_the_pessimism_of_a_check_is_that_of_the_learner(safe_psrl: Callable[..., Any]) -> None:
    (found,) = json.loads(safe_psrl("spec", "check", "factored-toy", "--set", "method=published", "--json").out)["constraints"]
    last = int(found["episode_below_budget"])
    plans = {}
    learner = SafePsrl(preset("factored-toy"), SafePsrlOptions("published"))
    for k in (1, last - 1, last):
        plans[k] = learner.plan(replace(learner.initial_state(), episode=k - 1)).pessimism[0]
    assert found["first_pessimism"] == pytest.approx(plans[1])
    assert plans[last] < found["cost_budget"] <= plans[last - 1]


def write_toy(path: Path, **changes: Any) -> str:
    """A file with the toy's specification, changed."""
    path.write_text(json.dumps(spec_to_document(preset("factored-toy")) | changes), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"fallback_policy": [[0, 0, 0]] * 5}, "spec.fallback_policy: must have 6 x 3 actions"),
        ({"fallback_policy": [[0, 0, 9]] * 6}, "spec.fallback_policy.actions[2]: 9 is not available in state 2"),
        ({"max_open_episodes": 5000}, "spec.max_open_episodes: must be from 1 to 1000"),
        ({"seed": 2**63}, "spec.seed: must be at most 2^63 - 1"),
    ],
)
def test_a_check_is_as_strict_as_a_creation(
    safe_psrl: Callable[..., Any], server: str, tmp_path: Path, agent: dict[str, Any], message: str
) -> None:
    file = write_toy(tmp_path / "mine.json", agent=agent)
    checked, created = safe_psrl("spec", "check", file), safe_psrl("agent", "create", "x", "--spec", file, "--target", server)
    assert checked.code == created.code == 2
    assert checked.err == created.err
    assert message in checked.err


def test_a_check_takes_the_options_of_a_creation(safe_psrl: Callable[..., Any]) -> None:
    theorem = safe_psrl("spec", "check", "streaming-buffer", "--set", "method=theorem").out
    assert "warning: fast-service: the pessimism of the method theorem exceeds the budget for 4,534,819 episodes" in theorem
    capped = safe_psrl("spec", "check", "streaming-buffer", "--set", "method=theorem", "--set", "cap_pessimism=true").out
    assert "below the budget from episode 1 on" in capped
    assert "warning" not in capped
    other = next(method for method in METHODS if method not in PESSIMISM_PRESETS)
    assert "pessimism" not in safe_psrl("spec", "check", "streaming-buffer", "--set", f"method={other}").out


CAPPED = ("--set", "method=published", "--set", "cap_pessimism=true")
ENDING: dict[str, Any] = {  # state 2 is where episodes end
    "support": [[[1, 0, 1], [0, 1, 1]], [[1, 0, 1], [0, 1, 1]], [[0, 0, 1], [0, 0, 1]]],
    "constraints": [
        {"name": "c", "cost": [[0, 1], [0, 1], [0, 0]], "cost_budget": 2, "satisfiable_cost": 0},
    ],
}


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({**ENDING, "reward": [[0.5, 1], [0.3, 1], [0, 0]]}, "every step earns 0.3 or more, and an ended episode nothing"),
        ({**ENDING, "reward": [[0, 1], [0.3, 1], [0, 0]]}, None),
        ({**ENDING, "reward": [[0, 1], [0.3, 1], [0, 0]], "horizon": 80}, "end within 10 steps: a horizon of 80 is longer"),
        (
            {**ENDING, "reward": [[0, 1], [0.3, 1], [0, 0]], "agent": {"environment": {"reward_range": "-1.0 to 1.0"}}},
            "rewards begin at -1.0, and an ended episode has the least reward",
        ),
        ({"horizon": 400}, "a random player can reach every state by step 1: with a horizon of 400"),
        ({"initial_state": None, "initial_distribution": [0.5, 0.5, 0]}, "episodes begin at random and no seed is given"),
        ({"initial_state": None, "initial_distribution": [0.5, 0.5, 0], "agent": {"seed": 1}}, None),
    ],
)
def test_a_check_warns_of_traps(
    safe_psrl: Callable[..., Any], tmp_path: Path, changes: dict[str, Any], warning: str | None
) -> None:
    document = {**spec_to_document(preset("factored-toy")), **changes}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}), encoding="utf-8")
    ended = safe_psrl("spec", "check", str(path), *CAPPED)
    assert ended.code == 0, ended.err
    warnings = [line for line in ended.out.splitlines() if "warning: " in line]
    assert len(warnings) == (warning is not None), ended.out
    if warning:
        assert warning in warnings[0]


def test_a_check_of_a_file_without_a_kernel_reports_it(safe_psrl: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(safe_psrl("spec", "show", "factored-toy").out, encoding="utf-8")
    assert "no kernel" in safe_psrl("spec", "check", str(path)).out
    assert json.loads(safe_psrl("spec", "check", str(path), "--json").out)["optimum"] is None
