"""Environments to learn in: the paper's streaming buffer, an inventory, a toy, and random ones of any size."""

from safe_psrl_testbed.changing import ChangingScenario, changing_scenario
from safe_psrl_testbed.environment import Environment, Outcome, TabularEnvironment
from safe_psrl_testbed.local_agent import LocalAgent
from safe_psrl_testbed.quantiser import Quantiser
from safe_psrl_testbed.random_cmdp import random_cmdp
from safe_psrl_testbed.scenario import Scenario, scenario_named

__all__ = [
    "ChangingScenario",
    "Environment",
    "LocalAgent",
    "Outcome",
    "Quantiser",
    "Scenario",
    "TabularEnvironment",
    "changing_scenario",
    "random_cmdp",
    "scenario_named",
]
