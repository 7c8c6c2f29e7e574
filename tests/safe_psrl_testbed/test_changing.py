"""Worlds that change: to the kernels of other scenarios, or by the walk of a parameter."""

import json
from pathlib import Path

import numpy as np
import pytest

from safe_psrl import SpecError
from safe_psrl.problem.documents import spec_to_document
from safe_psrl_testbed import changing_scenario, scenario_named
from safe_psrl_testbed.changing import Walk

BUFFER = "streaming-buffer"


def test_each_scenario_follows_after_its_number_of_episodes() -> None:
    changing = changing_scenario(BUFFER, [f"{BUFFER}:departure=0.5@10", f"{BUFFER}:fast=0.6@25"], episodes=30)
    changes = changing.changes_for(1, 30)
    assert list(changes) == [10, 25]
    np.testing.assert_array_equal(changes[10], scenario_named(f"{BUFFER}:departure=0.5").transitions_for(1))
    np.testing.assert_array_equal(changes[25], scenario_named(f"{BUFFER}:fast=0.6").transitions_for(1))


def test_a_world_without_changes_has_none() -> None:
    assert changing_scenario("inventory").changes_for(1, 1_000) == {}


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ([BUFFER], "write ENVIRONMENT@EPISODES"),
        (["@5"], "write ENVIRONMENT@EPISODES"),
        ([f"{BUFFER}@"], "write ENVIRONMENT@EPISODES"),
        ([f"{BUFFER}@0"], "write ENVIRONMENT@EPISODES"),
        ([f"{BUFFER}@2.5"], "write ENVIRONMENT@EPISODES"),
        ([f"{BUFFER}@true"], "write ENVIRONMENT@EPISODES"),
        (["nowhere@5"], "environment = 'nowhere'"),
        ([f"{BUFFER}@50", f"{BUFFER}@50"], "must come after the change at 50 episodes"),
        ([f"{BUFFER}@100"], "must come before the last of 100 episodes"),
        (["inventory@5"], r"\(6, 6, 7, 1\), not \(10, 2, 10, 1\) as streaming-buffer"),
        (["random:states=10,actions=2,horizon=10,constraints=2@5"], r"\(10, 2, 10, 2\), not"),
    ],
)
def test_a_change_that_is_wrong_is_named(then: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        changing_scenario(BUFFER, then, episodes=100)


def test_a_kernel_outside_the_support_of_the_problem_is_an_error(tmp_path: Path) -> None:
    known = scenario_named("factored-toy")
    kernel = known.transitions_for(1)[0]
    path = tmp_path / "narrow.json"
    document = spec_to_document(known.spec) | {"support": (kernel > 0).tolist(), "transitions": kernel.tolist()}
    path.write_text(json.dumps(document), encoding="utf-8")
    other = tmp_path / "wide.json"
    wide = spec_to_document(known.spec) | {"transitions": np.full(kernel.shape, 1 / 3).tolist()}
    other.write_text(json.dumps(wide), encoding="utf-8")
    with pytest.raises(SpecError, match="transitions"):
        changing_scenario(str(path), [f"{other}@5"]).changes_for(1, 10)


def test_a_walk_goes_up_or_down_by_its_step_and_differs_by_seed() -> None:
    changing = changing_scenario(f"{BUFFER}:departure=0.5", walk="departure=0.05@100")
    assert changing.walk is not None
    values = changing.walk.values(1, 9)
    np.testing.assert_allclose(np.abs(np.diff([0.5, *values])), 0.05)
    assert values == changing.walk.values(1, 20)[:9]
    assert len({tuple(changing.walk.values(seed, 9)) for seed in range(1, 6)}) == 5
    changes = changing.changes_for(1, 1_000)
    assert list(changes) == list(range(100, 1_000, 100))
    for value, kernel in zip(values, changes.values(), strict=True):
        np.testing.assert_array_equal(kernel, scenario_named(f"{BUFFER}:departure={value!r}").transitions_for(1))


def test_a_walk_is_reflected_at_0_and_1() -> None:
    values = Walk(f"{BUFFER}:slow=0.1", "slow", 0.3, 1).values(3, 2_000)
    assert 0.0 <= min(values) < 0.05
    assert 0.95 < max(values) <= 1.0


@pytest.mark.parametrize(
    ("environment", "walk", "message"),
    [
        ("inventory", "departure=0.1@5", "needs an environment with parameters, such as streaming-buffer, not inventory"),
        ("random", "seed=1@5", "needs an environment with parameters"),
        (BUFFER, "departure", "write PARAMETER=STEP@EPISODES"),
        (BUFFER, "departure=0.1", "write PARAMETER=STEP@EPISODES"),
        (BUFFER, "departure=0@5", "write PARAMETER=STEP@EPISODES"),
        (BUFFER, "departure=true@5", "write PARAMETER=STEP@EPISODES"),
        (BUFFER, "departure=0.1@0", "write PARAMETER=STEP@EPISODES"),
        (BUFFER, "demand=0.1@5", "fast, slow, departure may walk"),
    ],
)
def test_a_walk_that_is_wrong_is_named(environment: str, walk: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        changing_scenario(environment, walk=walk)


def test_a_walk_and_changes_exclude_each_other() -> None:
    with pytest.raises(SpecError, match="cannot be combined with `then`"):
        changing_scenario(BUFFER, [f"{BUFFER}@5"], "departure=0.1@5")


def test_a_file_of_a_presets_name_is_no_preset(tmp_path: Path) -> None:
    path = tmp_path / "streaming-buffer.json"
    path.write_text(json.dumps(spec_to_document(scenario_named(BUFFER).spec)), encoding="utf-8")
    with pytest.raises(SpecError, match="needs an environment with parameters"):
        changing_scenario(str(path), walk="departure=0.1@5")
