"""Documents become the contract's messages without numpy, and mean what they mean to the library."""

import re
from pathlib import Path
from typing import Any

import pytest

from safe_psrl import PESSIMISM_PRESETS, PRESETS, SafePsrl, preset
from safe_psrl.problem import documents
from safe_psrl_client import InvalidDocumentError, options_from_document, spec_from_document, spec_to_document
from safe_psrl_client.documents import (
    CMDP_FIELDS,
    CONSTRAINT_FIELDS,
    OPTION_FIELDS,
    PESSIMISM_COEFFICIENTS,
    nested_lists,
    parse_document,
    table_of,
)


def small() -> dict[str, Any]:
    return {
        "num_states": 2,
        "num_actions": 2,
        "horizon": 3,
        "initial_distribution": [0.5, 0.5],
        "reward": [[0, 1], [1, 0.5]],
        "reward_learned": True,
        "available_actions": [[True, True], [True, False]],
        "support": [[[1, 1], [1, 0]], [[1, 1], [1, 1]]],
        "dirichlet_prior": 0.2,
        "stationary": False,
        "state_names": ["empty", "full"],
        "action_names": ["wait", "send"],
        "constraints": [{"name": "c", "cost": [[0, 1], [0, 1]], "cost_budget": 1, "satisfiable_cost": 0.5, "learned": True}],
        "agent": {
            "seed": 7,
            "options": {"pessimism_coefficient": "theorem", "cap_pessimism": True, "max_kernel_draws": 5},
            "fallback_policy": [[0, 0], [1, 0], [0, 0]],
            "max_open_episodes": 2,
            "episode_timeout_seconds": 60,
        },
    }


def test_the_fields_are_those_of_the_library() -> None:
    assert sorted(CMDP_FIELDS) == sorted(documents.SPEC_FIELDS)
    assert CONSTRAINT_FIELDS == documents.CONSTRAINT_FIELDS
    assert set(OPTION_FIELDS) <= set(documents.OPTION_FIELDS)
    assert PESSIMISM_COEFFICIENTS == PESSIMISM_PRESETS


def test_continuing_tasks() -> None:
    """`continuing` stands in the place of the horizon, there and back."""
    spec = spec_from_document({**small(), "horizon": "continuing"})
    assert (spec.cmdp.continuing, spec.cmdp.horizon) == (True, 0)
    assert spec_to_document(spec)["horizon"] == "continuing"


def test_every_field_is_converted() -> None:
    spec = spec_from_document(small())
    cmdp = spec.cmdp
    assert (cmdp.num_states, cmdp.num_actions, cmdp.horizon) == (2, 2, 3)
    assert list(cmdp.initial_distribution.values) == [0.5, 0.5]
    assert (list(cmdp.reward.shape), list(cmdp.reward.values)) == ([2, 2], [0, 1, 1, 0.5])
    assert list(cmdp.available_actions.values) == [1, 1, 1, 0]
    assert list(cmdp.support.shape) == [2, 2, 2]
    assert (list(cmdp.state_names), list(cmdp.action_names)) == (["empty", "full"], ["wait", "send"])
    assert (list(cmdp.dirichlet_prior.shape), list(cmdp.dirichlet_prior.values)) == ([], [0.2])
    assert (cmdp.reward_learned, cmdp.non_stationary) == (True, True)
    assert (cmdp.constraints[0].learned, cmdp.constraints[0].cost_budget) == (True, 1)
    assert (spec.seed, spec.max_open_episodes, spec.episode_timeout_seconds) == (7, 2, 60)
    assert (spec.options.pessimism_coefficient, spec.options.cap_pessimism) == (5, True)
    assert list(spec.fallback_policy.actions) == [0, 0, 1, 0, 0, 0]


def test_a_definition_round_trips_through_a_document() -> None:
    spec = spec_from_document(small())
    assert spec_from_document(spec_to_document(spec)) == spec


@pytest.mark.parametrize("name", PRESETS)
def test_documents_of_the_library_are_read(name: str) -> None:
    document = documents.spec_to_document(preset(name))
    for kind in ("toml", "json"):
        spec = spec_from_document(parse_document(documents.write_document(document, kind), kind))
        again = spec_to_document(spec)
        assert documents.spec_to_document(documents.spec_from_document(again)) == document


def test_the_kernel_of_a_simulation_is_no_part_of_a_definition() -> None:
    assert spec_from_document(small() | {"transitions": [[0.5]]}) == spec_from_document(small())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": None}, "horizon: is missing"),
        ({"horizn": 3}, "horizn: is not a field; did you mean horizon?"),
        ({"reward": [[0, 1], [1]]}, "reward: must be rectangular"),
        ({"reward": [[0, "x"], [1, 0]]}, "reward: must be numbers"),
        ({"num_states": 2.5}, "num_states = 2.5"),
        ({"num_states": True}, "num_states = True"),
        ({"reward_learned": 1}, "reward_learned = 1: must be true or false"),
        ({"state_names": "ab"}, "state_names = 'ab': must be a list of names"),
        ({"action_names": ["a", 1]}, "action_names = .'a', 1.: must be a list of names"),
        ({"stationary": "no"}, "stationary = 'no': must be true or false"),
        ({"initial_state": 0}, "initial_state: must not be given together"),
        ({"constraints": 3}, "constraints: must be a list of tables"),
        ({"constraints": [3]}, r"constraints\[0\]: must be a table of fields"),
        ({"constraints": [{"name": "c"}]}, r"constraints\[0\].cost: is missing"),
        ({"agent": {"sed": 1}}, "agent.sed: is not a field; did you mean seed?"),
        ({"agent": {"seed": -1}}, "agent.seed = -1"),
        ({"agent": {"options": {"pessimism_coefficient": "brave"}}}, "must be a number or one of theorem"),
        ({"agent": {"fallback_policy": [0, 1]}}, r"agent.fallback_policy: must be a table of whole numbers"),
        ({"agent": {"fallback_policy": [[0, float("inf")]]}}, r"agent.fallback_policy: must be a table of whole numbers"),
        ({"agent": {"fallback_policy": [[0, float("nan")]]}}, r"agent.fallback_policy: must be a table of whole numbers"),
        ({"agent": {"environment": {"quantiser": 3}}}, r"agent.environment.quantiser = 3: must be text"),
        ({"agent": {"environment": 3}}, r"agent.environment: must be a table of fields"),
        ({"agent": {"episode_timeout_seconds": 10**400}}, r"agent.episode_timeout_seconds = 1000"),
        ({"reward": [[0, 10**400]]}, r"reward: must be numbers of at most 308 digits"),
    ],
)
def test_a_mistake_is_named_with_its_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDocumentError, match=message):
        spec_from_document({field: value for field, value in (small() | change).items() if value is not None})


@pytest.mark.parametrize(("text", "kind"), [("{", "json"), ("[1]", "json"), ("a =", "toml")])
def test_unreadable_text_is_refused(text: str, kind: str) -> None:
    with pytest.raises(InvalidDocumentError):
        parse_document(text, kind)


def test_notes_on_the_environment_round_trip() -> None:
    document = small() | {"agent": {"environment": {"quantiser": "3 bins", "cost a": "info['a']"}}}
    assert spec_to_document(spec_from_document(document))["agent"] == document["agent"]


def test_options_left_out_stay_absent() -> None:
    options = options_from_document({"cap_pessimism": False})
    assert options.HasField("cap_pessimism")
    assert not options.HasField("max_kernel_draws")


def test_tables_and_nested_lists_are_each_others_inverse() -> None:
    value = [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]
    table = table_of("t", value)
    assert list(table.shape) == [1, 3, 2]
    assert nested_lists(list(table.shape), list(table.values)) == value
    assert nested_lists([], [3.0]) == 3.0
    assert list(table_of("t", []).shape) == [0]


def test_listed_next_states_round_trip() -> None:
    """The example of the documentation: the same problem to the library, and the document that it was."""
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
    listing, guard = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)[::-1]
    document = parse_document(listing, "toml")
    assert spec_from_document(document | parse_document(guard, "toml")).guard.on_drift
    spec = spec_from_document(document)
    listed = spec.cmdp.next_states
    assert (list(listed.shape), list(listed.values)[:6]) == ([5, 2, 2], [0, -1, 0, 1, 0, 1])
    assert spec_to_document(spec)["next_states"] == document["next_states"]
    problem = documents.spec_from_document(document)
    assert documents.spec_to_document(problem)["next_states"] == document["next_states"]
    assert SafePsrl(problem).start_episode(SafePsrl(problem).initial_state())[1].policy.shape == (4, 5)


@pytest.mark.parametrize("entry", [0.5, 2**31, -(2**31), float("nan")])
def test_next_states_are_whole_numbers(entry: float) -> None:
    with pytest.raises(InvalidDocumentError, match="next_states: must be whole numbers"):
        spec_from_document({**small(), "next_states": [[[entry]]]})
