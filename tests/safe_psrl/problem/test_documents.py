"""Specifications and options as TOML and JSON text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.safe_psrl.cases import random_case

from safe_psrl import PRESETS, CmdpSpec, SafePsrlOptions, SpecError, preset
from safe_psrl.problem.documents import (
    options_from_document,
    options_to_document,
    parse_document,
    scalar_of,
    spec_from_document,
    spec_to_document,
    write_document,
)

KINDS = ("toml", "json")
VARIANT = st.fixed_dictionaries(
    {name: st.booleans() for name in ("masked", "step_signals", "per_step", "learned", "binary_costs")}
    | {"num_constraints": st.integers(1, 3)}
)


def assert_equal(one: CmdpSpec, other: CmdpSpec) -> None:
    for field, value in vars(one).items():
        assert np.array_equal(value, getattr(other, field)), field


def smallest(**changes: object) -> dict:
    constraint = {"name": "cost", "cost": [[0.5]], "cost_budget": 1.0, "satisfiable_cost": 0.5}
    document = {"num_states": 1, "num_actions": 1, "horizon": 1, "reward": [[0.5]], "constraints": [constraint]}
    return {**document, **changes}


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 10**6), st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)), VARIANT)
def test_specifications_survive_the_round_trip(kind: str, seed: int, sizes: tuple[int, int, int], variant: dict) -> None:
    """Written and read again, a specification is the same to the last bit of every table."""
    spec = random_case(seed, sizes, **variant).spec
    again = spec_from_document(parse_document(write_document(spec_to_document(spec), kind), kind))
    assert_equal(spec, again)


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=40))
def test_start_distributions_are_normalised_once(weights: list[float]) -> None:
    """A distribution that sums to 1 but for 1e-10 is made exact; reading what was written then changes no bit."""
    given_start = np.array(weights) / sum(weights) * (1 + 1e-10)
    table = [[0.5]] * len(weights)
    constraint = {"name": "cost", "cost": table, "cost_budget": 1.0, "satisfiable_cost": 0.0}
    rest = {"num_states": len(weights), "reward": table, "constraints": [constraint]}
    once = spec_from_document(smallest(initial_distribution=given_start.tolist(), **rest)).initial_distribution
    twice = spec_from_document(smallest(initial_distribution=once.tolist(), **rest)).initial_distribution
    assert once.sum() == pytest.approx(1, abs=1e-13)
    assert once.tolist() == twice.tolist()


@pytest.mark.parametrize("kind", KINDS)
@given(st.floats(0, 1e6), st.booleans(), st.integers(1, 10**6))
def test_options_survive_the_round_trip(kind: str, coefficient: float, capped: bool, draws: int) -> None:
    """The same for the options."""
    options = SafePsrlOptions(pessimism_coefficient=coefficient, cap_pessimism=capped, max_kernel_draws=draws)
    assert options_from_document(parse_document(write_document(options_to_document(options), kind), kind)) == options


@given(st.integers(1, 3), st.integers(0, 10**6))
def test_uneven_priors_survive_the_round_trip(size: int, seed: int) -> None:
    """A table of weights is written out; a uniform one as its single number."""
    prior = np.random.default_rng(seed).gamma(1, size=(size, 1, size)) + 1e-3
    table = [[0.5]] * size
    constraint = {"name": "cost", "cost": table, "cost_budget": 1.0, "satisfiable_cost": 0.0}
    document = smallest(num_states=size, reward=table, constraints=[constraint], dirichlet_prior=prior.tolist())
    spec = spec_from_document(document)
    written = spec_to_document(spec)
    assert isinstance(written["dirichlet_prior"], list) == (size > 1)
    assert_equal(spec, spec_from_document(written))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_the_round_trip(name: str, kind: str) -> None:
    """Every problem that comes with the product can be written, edited and read."""
    document = spec_to_document(preset(name))
    assert_equal(preset(name), spec_from_document(parse_document(write_document(document, kind), kind)))
    assert document["dirichlet_prior"] == 0.1
    assert document["initial_state"] == 0
    assert ("available_actions" in document) == (name == "inventory")


def test_presets_by_name() -> None:
    """An unknown name lists the known ones and suggests the nearest."""
    with pytest.raises(
        SpecError,
        match=r"must be one of streaming-buffer, inventory, factored-toy, continuing-buffer; did you mean inventory\?",
    ):
        preset("invntory")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (smallest(horizn=3), "horizn = 3: is not a field; did you mean horizon?"),
        (smallest(xyz=3), "xyz = 3: is not a field; the fields are num_states, num_actions, horizon"),
        (smallest(**{"two\nlines": 3}), "'two\\nlines' = 3: is not a field"),
        ({"num_states": 1}, "num_actions = None: is missing"),
        ({}, "num_states = None: is missing"),
        (smallest(constraints="cost"), "constraints = 'cost': must be a list of tables"),
        (smallest(constraints=[1]), "constraints = [1]: must be a list of tables"),
        (smallest(constraints={"name": "cost"}), "constraints = {'name': 'cost'}: must be a list of tables"),
        (smallest(constraints=[]), "constraints = []: must have at least one constraint"),
        (smallest(constraints=[{"name": "cost"}]), "constraints[0].cost = None: is missing"),
        (smallest(constraints=[{"cost_buget": 1}]), "constraints[0].cost_buget = 1: is not a field; did you mean cost_budget?"),
        (smallest(reward=[["a"]]), "reward = [['a']]: must be a table of numbers"),
    ],
)
def test_documents_that_are_no_specification(document: dict, message: str) -> None:
    """One line: the field with its place, and a suggestion where a name is nearly right."""
    with pytest.raises(SpecError) as caught:
        spec_from_document(document)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{", "json"),
        ("", "json"),
        ('{"a": 1,}', "json"),
        ("a = ", "toml"),
        ("a = 1\na = 2", "toml"),
        ("[" * 100_000, "json"),
        ("a = " + "[" * 100_000, "toml"),
        ('{"a": ' + "1" * 5000 + "}", "json"),
        ("a = " + "1" * 5000, "toml"),
    ],
)
def test_malformed_text(text: str, kind: str) -> None:
    """Text that cannot be read is one error of one line, however it is broken: too deep and too long included."""
    with pytest.raises(SpecError, match=f"^{kind} document = .*: cannot be read: ") as caught:
        parse_document(text, kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", "3", "null", '"word"'])
def test_json_that_is_no_table(text: str) -> None:
    """A document is a table of fields."""
    with pytest.raises(SpecError, match="must be a table of fields"):
        parse_document(text, "json")


def test_numbers_that_json_knows_and_we_do_not() -> None:
    """Infinity is read by Python's json, and refused by the specification; NaN is an entry that is not known."""
    document = parse_document(
        '{"num_states": 1, "num_actions": 1, "horizon": 1, "reward": [[Infinity]], "constraints": []}', "json"
    )
    with pytest.raises(SpecError, match="constraints = "):
        spec_from_document(document)
    with pytest.raises(SpecError, match=r"reward\[0\]\[0\] = inf: must be finite"):
        spec_from_document(smallest(reward=document["reward"]))
    assert spec_from_document(smallest(reward=[[None]])).learned[0].all()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("3", 3),
        ("-3", -3),
        ("+3", 3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("3.0", 3.0),
        ("theorem", "theorem"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1e999", "1e999"),
        ("True", "True"),
        ("", ""),
        ("--3", "--3"),
        ("²", "²"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalar_of(text: str, value: object) -> None:
    """A word of the command line as the value it looks like; what is no finite number stays a word."""
    found = scalar_of(text)
    assert found == value
    assert type(found) is type(value)
