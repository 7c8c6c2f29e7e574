"""The contract of a specification: each breach is one error of one line that names field, place and value."""

import numpy as np
import pytest
from tests.safe_psrl.cases import random_case

from safe_psrl import CmdpSpec, Constraint, SafePsrlOptions, SpecError

NAN, INF = float("nan"), float("inf")
COST = {"name": "cost", "cost": [[0.1, 0.2], [0.3, 0.4]], "cost_budget": 2.0, "satisfiable_cost": 1.0}
BASE = {
    "num_states": 2,
    "num_actions": 2,
    "horizon": 3,
    "reward": [[0.1, 0.2], [0.3, 0.4]],
    "constraints": [Constraint(**COST)],
}
TABLE = "must be a table of numbers with rows of equal length"
PRIOR = "must be greater than 0 (1e-300 to 9.0072e+15)"
PAIR = "[num_states, num_actions] = [2, 2]"
SIGNAL = f"must be {PAIR} or [horizon, num_states, num_actions] = [3, 2, 2]"
TRIPLE = "[num_states, num_actions, num_states] = [2, 2, 2]"


def cost(**changes: object) -> dict:
    return {"constraints": [Constraint(**{**COST, **changes})]}


def ones(*shape: int, **at: float) -> np.ndarray:
    """A table of ones with one other entry, `x0_1=value` being at [0, 1]."""
    table = np.ones(shape)
    for place, value in at.items():
        table[tuple(int(i) for i in place[1:].split("_"))] = value
    return table


BREACHES = [
    ({"num_states": 0}, "num_states = 0: must be a whole number, at least 1"),
    ({"num_states": -3}, "num_states = -3: must be a whole number, at least 1"),
    ({"num_states": True}, "num_states = True: must be a whole number"),
    ({"num_states": 2.0}, "num_states = 2: must be a whole number"),
    ({"num_states": "2"}, "num_states = '2': must be a whole number"),
    ({"num_states": None}, "num_states = None: must be a whole number"),
    ({"num_states": 10**30}, f"num_states = {10**30}: must be a whole number, at least 1"),
    ({"num_states": 10**5000}, "num_states = a number of thousands of digits: must be a whole number, at least 1"),
    ({"num_states": 10**6}, "num_states = 1000000: needs tables of more than 1073741824 entries"),
    ({"state_names": ["a"]}, "number of state_names = 1: must be 2"),
    ({"state_names": "ab"}, "state_names = 'ab': must be a list of names"),
    ({"state_names": ["a", ""]}, "state_names[1] = '': must be a non-empty name"),
    ({"action_names": ["a", 1]}, "action_names[1] = 1: must be a non-empty name"),
    ({"action_names": ["a", "a"]}, "action_names[1] = 'a': must differ from action_names[0]"),
    ({"action_names": ["a", "b" * 101]}, "must be at most 100 characters, got 101"),
    ({"num_actions": 0}, "num_actions = 0: must be a whole number, at least 1"),
    ({"num_actions": 2**40}, f"num_actions = {2**40}: needs tables of more than 1073741824 entries"),
    ({"horizon": 0}, "horizon = 0: must be a whole number, at least 1"),
    ({"horizon": NAN}, "horizon = nan: must be a whole number"),
    ({"horizon": 2**40}, f"horizon = {2**40}: needs tables of more than 1073741824 entries"),
    ({"stationary": 1}, "stationary = 1: must be true or false"),
    ({"stationary": "no"}, "stationary = 'no': must be true or false"),
    ({"reward_learned": 0}, "reward_learned = 0: must be true or false"),
    ({"reward": [[0.1, 0.2], [0.3, INF]]}, "reward[1][1] = inf: must be finite"),
    ({"reward": [[0.1, INF], [0.3, 0.4]]}, "reward[0][1] = inf: must be finite"),
    ({"reward": [[0.1, 0.2], [-0.3, 0.4]]}, "reward[1][0] = -0.3: must be a number from 0 to 1"),
    ({"reward": [[0.1, 1.5], [0.3, 0.4]]}, "reward[0][1] = 1.5: must be a number from 0 to 1"),
    ({"reward": ones(3, 2, 2, x2_0_1=2.0)}, "reward[2][0][1] = 2: must be a number from 0 to 1"),
    ({"reward": [[0.1, 0.2]]}, f"shape of reward = [1, 2]: {SIGNAL}"),
    ({"reward": 0.5}, f"shape of reward = []: {SIGNAL}"),
    ({"reward": []}, f"shape of reward = [0]: {SIGNAL}"),
    ({"reward": ones(2, 2, 2)}, f"shape of reward = [2, 2, 2]: {SIGNAL}"),
    ({"reward": [[0.1, 0.2], [0.3]]}, f"reward = [[0.1, 0.2], [0.3]]: {TABLE}"),
    ({"reward": "high"}, f"reward = 'high': {TABLE}"),
    ({"reward": ""}, f"reward = '': {TABLE}"),
    ({"reward": [["0.1", "0.2"], ["0.3", "0.4"]]}, f"reward = [['0.1', '0.2'], ['0.3', '0.4']]: {TABLE}"),
    ({"reward": [["0.1", None], [0.3, 0.4]]}, f"reward = [['0.1', None], [0.3, 0.4]]: {TABLE}"),
    ({"reward": [[1j, 0], [0, 0]]}, f"reward = [[1j, 0], [0, 0]]: {TABLE}"),
    ({"reward": [[10**400, 0], [0, 0]]}, TABLE),
    ({"reward": {"a": 1}}, f"reward = {{'a': 1}}: {TABLE}"),
    ({"reward": None}, "shape of reward = []: must be"),
    ({"constraints": []}, "constraints = []: must have at least one constraint"),
    ({"constraints": None}, "constraints = None: must be a list of constraints"),
    ({"constraints": ["cost"]}, "constraints = ['cost']: must be a list of constraints"),
    ({"constraints": Constraint(**COST)}, "must be a list of constraints"),
    ({"constraints": [Constraint(**COST)] * 2}, "constraints[1].name = 'cost': must differ from the other constraints' names"),
    (cost(name=""), "constraints[0].name = '': must be a non-empty name"),
    (cost(name="  "), "constraints[0].name = '  ': must be a non-empty name"),
    (cost(name=7), "constraints[0].name = 7: must be a non-empty name"),
    (cost(cost=[[0, 0], [0, 9]]), "constraints[0].cost[1][1] = 9: must be a number from 0 to 1"),
    (cost(cost=[[0, 0]]), f"shape of constraints[0].cost = [1, 2]: {SIGNAL}"),
    (cost(cost_budget=0), "constraints[0].cost_budget = 0: must be above 0 and at most the horizon, 3"),
    (cost(cost_budget=3.001), "constraints[0].cost_budget = 3.001: must be above 0 and at most the horizon, 3"),
    (cost(cost_budget=NAN), "constraints[0].cost_budget = nan: must be finite"),
    (cost(cost_budget="2"), "constraints[0].cost_budget = '2': must be a number"),
    (cost(cost_budget=True), "constraints[0].cost_budget = True: must be a number"),
    (cost(cost_budget=10**400), "must be finite"),
    (cost(satisfiable_cost=2.0), "constraints[0].satisfiable_cost = 2: must be at least 0 and below the budget, 2"),
    (cost(satisfiable_cost=2.5), "constraints[0].satisfiable_cost = 2.5: must be at least 0 and below the budget, 2"),
    (cost(satisfiable_cost=2 - 1e-12), "constraints[0].cost_budget = 2: must exceed satisfiable_cost by at least 1e-09"),
    (cost(satisfiable_cost=0.0, cost_budget=1e-200), "must exceed satisfiable_cost by at least 1e-09"),
    (cost(satisfiable_cost=-0.1), "constraints[0].satisfiable_cost = -0.1: must be at least 0 and below the budget, 2"),
    (cost(satisfiable_cost=None), "constraints[0].satisfiable_cost = None: must be a number"),
    (cost(learned="yes"), "constraints[0].learned = 'yes': must be true or false"),
    ({"initial_state": 2}, "initial_state = 2: must be a whole number, from 0 to 1"),
    ({"initial_state": -1}, "initial_state = -1: must be a whole number, from 0 to 1"),
    ({"initial_state": False}, "initial_state = False: must be a whole number"),
    ({"initial_state": 0, "initial_distribution": [1, 0]}, "must not be given together with initial_distribution"),
    ({"initial_distribution": [0.5, 0.4]}, "sum of initial_distribution = 0.9: must be 1"),
    ({"initial_distribution": [0.5, 0.5 + 1e-8]}, "sum of initial_distribution = 1: must be 1"),
    ({"initial_distribution": [1.5, -0.5]}, "initial_distribution[1] = -0.5: must not be negative"),
    ({"initial_distribution": [1.0]}, "shape of initial_distribution = [1]: must be [num_states] = [2]"),
    ({"initial_distribution": [NAN, 1.0]}, "initial_distribution[0] = nan: must be finite"),
    ({"available_actions": [[1, 1], [0, 0]]}, "available_actions[1] = False: has no available action"),
    ({"available_actions": [[1, 2], [1, 1]]}, "available_actions[0][1] = 2: must be true or false"),
    ({"available_actions": [1, 1]}, f"shape of available_actions = [2]: must be {PAIR}"),
    ({"support": ones(2, 2, 2, x1_0_0=0, x1_0_1=0)}, "support[1][0] = False: has no possible next state"),
    ({"support": ones(2, 2)}, f"shape of support = [2, 2]: must be {TRIPLE}"),
    ({"support": ones(3, 2, 2, 2)}, f"shape of support = [3, 2, 2, 2]: must be {TRIPLE}"),
    ({"dirichlet_prior": 0}, f"dirichlet_prior = 0: {PRIOR}"),
    ({"dirichlet_prior": -0.1}, f"dirichlet_prior = -0.1: {PRIOR}"),
    ({"dirichlet_prior": 1e17}, f"dirichlet_prior = 1e+17: {PRIOR}"),
    ({"dirichlet_prior": INF}, "dirichlet_prior = inf: must be finite"),
    ({"dirichlet_prior": True}, "dirichlet_prior = True: must be a number"),
    ({"dirichlet_prior": "0.1"}, "dirichlet_prior = '0.1': must be a number"),
    ({"dirichlet_prior": [[1], [1, 2]]}, f"dirichlet_prior = [[1], [1, 2]]: {TABLE}"),
    ({"dirichlet_prior": ones(2, 2, 2, x0_1_0=0)}, f"dirichlet_prior[0][1][0] = 0: {PRIOR} on the support; use `support`"),
    ({"dirichlet_prior": ones(2, 2, 2, x0_1_0=NAN)}, "dirichlet_prior[0][1][0] = nan: must be finite"),
    ({"dirichlet_prior": ones(3, 2, 2, 2)}, f"shape of dirichlet_prior = [3, 2, 2, 2]: must be {TRIPLE}"),
    ({"dirichlet_prior": ones(2, 2, 2, 2), "stationary": False}, f"{TRIPLE} or [horizon, num_states, num_actions, num_states]"),
    ({"dirichlet_prior": ones(3, 2, 2, 2, x2_0_0_1=0), "stationary": False}, "dirichlet_prior[2][0][0][1] = 0: "),
    (
        {"dirichlet_prior": ones(2, 2, 2, x1_1_1=0), "support": ones(3, 2, 2, 2, x0_1_1_1=0), "stationary": False},
        "dirichlet_prior[1][1][1][1] = 0: ",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BREACHES)
def test_breach_of_the_contract(changes: dict, message: str) -> None:
    """The message begins with the field and its place, shows the value and says what is wanted, on one short line."""
    with pytest.raises(SpecError) as caught:
        CmdpSpec(**{**BASE, **changes})
    assert message in str(caught.value)
    assert str(caught.value).startswith(caught.value.field)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "changes",
    [
        cost(cost_budget=3.0),
        cost(cost_budget=3, satisfiable_cost=0),
        {"num_states": np.int64(2), "horizon": np.int32(3)},
        {"reward": [[0, 1], [True, False]]},
        {"reward": ones(3, 2, 2)},
        {"initial_distribution": [1 / 3, 2 / 3]},
        {"support": ones(2, 2, 2, x0_1_0=0), "dirichlet_prior": ones(2, 2, 2, x0_1_0=0)},
        {"support": ones(2, 2, 2, x0_1_0=0, x0_1_1=0), "available_actions": [[1, 0], [1, 1]]},
        {"support": ones(3, 2, 2, 2), "dirichlet_prior": ones(3, 2, 2, 2), "stationary": False},
        {"support": ones(2, 2, 2), "dirichlet_prior": 1e-300, "stationary": False},
    ],
)
def test_edges_of_the_contract_are_accepted(changes: dict) -> None:
    """A budget of the horizon, a satisfiable cost of 0, numpy's numbers, and every shape that is documented."""
    spec = CmdpSpec(**{**BASE, **changes})
    assert spec.signals.shape[0] == 2
    assert spec.dirichlet_prior.shape[0] == (1 if spec.stationary else 3)
    assert spec.initial_distribution.sum() == pytest.approx(1, abs=1e-15)


def test_tables_are_copies_that_cannot_be_written() -> None:
    """What was given may change later; the specification does not."""
    reward = np.full((2, 2), 0.5)
    spec = CmdpSpec(**{**BASE, "reward": reward})
    reward[0, 0] = 1.0
    assert spec.signals[0, 0, 0, 0] == 0.5
    for table in (value for value in vars(random_case(0, (2, 2, 2)).spec).values() if isinstance(value, np.ndarray)):
        assert table.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            table[...] = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pessimism_coefficient": -1}, "pessimism_coefficient = -1: must not be negative"),
        ({"pessimism_coefficient": NAN}, "pessimism_coefficient = nan: must be finite"),
        ({"pessimism_coefficient": "theory"}, "must be a number or one of theorem, published, literal"),
        ({"pessimism_coefficient": True}, "pessimism_coefficient = True: must be a number"),
        ({"cap_pessimism": 1}, "cap_pessimism = 1: must be true or false"),
        ({"max_kernel_draws": 0}, "max_kernel_draws = 0: must be a whole number, from 1 to 1000000"),
        ({"max_kernel_draws": 1.5}, "max_kernel_draws = 1.5: must be a whole number"),
    ],
)
def test_options_have_a_contract_too(changes: dict, message: str) -> None:
    """The same form of error for how the algorithm is set."""
    with pytest.raises(SpecError) as caught:
        SafePsrlOptions(**changes)
    assert message in str(caught.value)
