"""Finding an environment by what a user types."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl import SpecError, exact_optimum
from safe_psrl.problem.documents import spec_to_document, write_document
from safe_psrl_testbed import random_cmdp, scenario_named
from safe_psrl_testbed.kernels import KERNELS


def write(path: Path, document: dict[str, Any]) -> str:
    path.write_text(write_document(document, path.suffix[1:]), encoding="utf-8")
    return str(path)


def toy_document(cost: Any = ((0.0, 1.0), (0.0, 1.0)), **changes: Any) -> dict[str, Any]:
    """A document of two states, without a kernel; a change to None takes a field away."""
    constraint = {"name": "cost", "cost": cost, "cost_budget": 1.0, "satisfiable_cost": 0.25}
    sizes = {"num_states": 2, "num_actions": 2, "horizon": 3}
    document = {**sizes, "reward": [[0.0, 1.0], [0.5, 1.0]], "constraints": [constraint], **changes}
    return {field: value for field, value in document.items() if value is not None}


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_presets_name(name: str) -> None:
    scenario = scenario_named(name)
    np.testing.assert_array_equal(scenario.transitions_for(1)[0], KERNELS[name]())
    assert scenario.environment().spec is scenario.spec


def test_random_with_sizes() -> None:
    scenario = scenario_named("random:states=4,actions=2,horizon=3,seed=8,constraints=2")
    assert scenario_named("random:horizon=continuing").spec.is_continuing
    spec, p = random_cmdp(4, 2, 3, seed=8, num_constraints=2)
    np.testing.assert_array_equal(scenario.transitions_for(1)[0], p)
    np.testing.assert_array_equal(scenario.spec.cost_budgets, spec.cost_budgets)


def test_the_prior_of_a_problem_draws_a_kernel_for_each_seed() -> None:
    drawn, preset = scenario_named("prior:streaming-buffer"), scenario_named("streaming-buffer")
    assert (drawn.name, drawn.transitions) == ("prior:streaming-buffer", None)
    np.testing.assert_array_equal(drawn.spec.signals, preset.spec.signals)
    first, again, second = (drawn.transitions_for(seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, preset.transitions_for(1))


@pytest.mark.parametrize("text", ["random", "random:", "random:states=10,"])
def test_random_with_sizes_left_out(text: str) -> None:
    spec = scenario_named(text).spec
    assert (spec.num_states, spec.num_actions, spec.horizon, spec.num_constraints) == (10, 3, 10, 1)


@pytest.mark.parametrize(
    "part", ["states", "states=", "states=x", "states=0", "states=2.5", "states=true", "seed=-1", "size=3"]
)
def test_a_part_of_random_that_is_wrong_is_named(part: str) -> None:
    with pytest.raises(SpecError, match="write random:states=N,actions=N,horizon=N,seed=N,constraints=N") as raised:
        scenario_named(f"random:actions=2,{part}")
    assert repr(part) in str(raised.value)


def test_a_preset_with_other_parameters_is_the_same_problem_on_another_kernel() -> None:
    scenario = scenario_named("streaming-buffer:departure=0.6,fast=0.5")
    p = scenario.transitions_for(1)[0]
    assert scenario.name == "streaming-buffer:departure=0.6,fast=0.5"
    np.testing.assert_array_equal(scenario.spec.signals, scenario_named("streaming-buffer").spec.signals)
    np.testing.assert_allclose(p[5, 0, [4, 5, 6]], [0.5 * 0.6, 0.5, 0.5 * 0.4])
    np.testing.assert_allclose(p[5, 1, [4, 5, 6]], [0.9 * 0.6, 0.9 * 0.4 + 0.1 * 0.6, 0.1 * 0.4])  # slow as in the preset
    np.testing.assert_array_equal(
        scenario_named("streaming-buffer:").transitions, scenario_named("streaming-buffer").transitions
    )


@pytest.mark.parametrize("part", ["depart=0.9", "departure", "departure=", "departure=1.1", "departure=true", "fast=-0.1", "x"])
def test_a_parameter_of_a_preset_that_is_wrong_is_named(part: str) -> None:
    message = "write streaming-buffer:fast=PROBABILITY,slow=PROBABILITY,departure=PROBABILITY"
    with pytest.raises(SpecError, match=message) as raised:
        scenario_named(f"streaming-buffer:slow=0.2,{part}")
    assert repr(part) in str(raised.value)


def test_a_preset_without_parameters_says_so() -> None:
    with pytest.raises(SpecError, match=r"has the part 'demand=2'; inventory has no parameters"):
        scenario_named("inventory:demand=2")


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_file_with_its_kernel(tmp_path: Path, suffix: str) -> None:
    known = scenario_named("inventory")
    document = spec_to_document(known.spec) | {"transitions": KERNELS["inventory"]().tolist()}
    scenario = scenario_named(write(tmp_path / f"shop{suffix}", document))
    assert scenario.name == "shop"
    np.testing.assert_array_equal(scenario.spec.signals, known.spec.signals)
    np.testing.assert_array_equal(scenario.spec.available_actions, known.spec.available_actions)
    for seed in (1, 2):
        np.testing.assert_array_equal(scenario.transitions_for(seed), known.transitions_for(seed))


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_file_without_a_kernel_draws_one_from_the_prior_for_each_seed(tmp_path: Path, suffix: str) -> None:
    scenario = scenario_named(write(tmp_path / f"toy{suffix}", toy_document(support=[[[1, 0], [1, 1]]] * 2)))
    first, again, other = (scenario.transitions_for(seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_allclose(first.sum(axis=-1), 1.0)
    np.testing.assert_array_equal(first[0, :, 0], [[1.0, 0.0]] * 2)  # the support holds


def test_a_drawn_kernel_satisfies_assumption_1(tmp_path: Path) -> None:
    """State 1 costs whatever is done there, so a kernel that goes there often contradicts the assumption."""
    scenario = scenario_named(write(tmp_path / "trap.json", toy_document(cost=[[0.0, 1.0], [1.0, 1.0]])))
    for seed in range(1, 21):
        least = exact_optimum(scenario.spec, scenario.transitions_for(seed), [0.25])
        assert least.costs[0] <= 0.25 + 1e-9


def test_a_prior_that_contradicts_assumption_1_is_reported(tmp_path: Path) -> None:
    scenario = scenario_named(write(tmp_path / "hopeless.json", toy_document(cost=[[0.5, 1.0], [0.5, 1.0]])))
    with pytest.raises(SpecError, match=r"^satisfiable_cost = 0\.25: was reached on none of 1000 kernels"):
        scenario.transitions_for(1)


def test_kernels_by_step_in_a_file(tmp_path: Path) -> None:
    stay = [[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2]
    document = toy_document(stationary=False, transitions=[stay, stay, stay])
    assert scenario_named(write(tmp_path / "toy.json", document)).transitions_for(1).shape == (3, 2, 2, 2)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (toy_document(horizon=None), r"^horizon"),
        (toy_document(rewards=[[0, 0]]), r"^rewards = .*did you mean reward\?"),
        (toy_document(transitions=[[[0.5, 0.4]] * 2] * 2), r"^sum of transitions\[0\]\[0\] = 0\.9: must be 1"),
        (toy_document(transitions=[[1.0]]), r"^shape of transitions"),
        (toy_document(constraints=[]), r"^constraints"),
    ],
)
def test_a_file_that_breaks_the_contract_is_refused(tmp_path: Path, document: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        scenario_named(write(tmp_path / "wrong.json", document))


@pytest.mark.parametrize(("name", "text"), [("a.toml", "horizon = ["), ("a.json", "{"), ("b.json", "[1]"), ("b.toml", "\x00")])
def test_a_file_that_is_malformed_is_refused_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=f"^{path.suffix[1:]} document = ") as raised:
        scenario_named(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "absent.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=r"^file = .*absent\.toml.*cannot be read"):
        scenario_named(str(path))


@pytest.mark.parametrize("text", ["streaming", "", "file.yaml", "Inventory"])
def test_an_unknown_name_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(SpecError) as raised:
        scenario_named(text)
    for known in (*KERNELS, "random:states=S", ".toml"):
        assert known in str(raised.value)


def test_a_file_to_create_an_agent_from_can_be_checked_and_simulated(tmp_path: Path) -> None:
    """Its table `agent` is no part of the problem, but its mistakes are told."""
    file = tmp_path / "mine.json"
    assert scenario_named(write(file, toy_document(agent={"seed": 3, "options": {"method": "certified"}}))).spec.num_states == 2
    for wrong, told in (({"sede": 3}, "sede"), ({"options": {"method": "bold"}}, "method = 'bold'")):
        with pytest.raises(SpecError, match=told):
            scenario_named(write(file, toy_document(agent=wrong)))
