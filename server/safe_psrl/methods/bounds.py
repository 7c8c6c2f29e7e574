"""The numbers of the theorem's proof (paper, section 6), for one constraint of a problem. All are worst cases.

They are stated for the theorem's coefficient of pessimism, 5, whatever the agent uses.
"""

import math
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

from safe_psrl.methods.schedule import dual_scale_at, pessimism_at
from safe_psrl.problem.options import PESSIMISM_PRESETS, SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec

EXACT_TERMS: Final = 1_000
MOST_EPISODES: Final = 2**60
THEOREM: Final = PESSIMISM_PRESETS["theorem"]


def feasibility_episode(spec: CmdpSpec, constraint: int = 0) -> float:
    """C'' = 80 H^3 S^2 A / (tau - c0)^2: from about this episode on, the tightened problem is feasible (section 6.1).

    "About", for the paper leaves logarithms out: at the theorem's coefficient, epsilon_k falls to (tau - c0) / 2 only at
    k = 5/4 C'' (log(kSAH) + 1)^2 / log(kSAH). At the published and the literal one it is below that from C'' on.
    """
    slack = _slack(spec, constraint)
    return 80.0 * spec.horizon**3 * spec.num_states**2 * spec.num_actions / (slack * slack)


def episodes_above_budget(spec: CmdpSpec, options: SafePsrlOptions, constraint: int = 0) -> int:
    """How many episodes the paper's pessimism is not below the budget: until then an agent plays for the least cost.

    0 for the method `certified`; `MOST_EPISODES` stands for any number from there on.
    """
    tau = float(spec.cost_budgets[constraint])
    highest = _slack(spec, constraint) / 2 if options.cap_pessimism else math.inf
    size = spec.num_states, spec.num_actions, spec.horizon
    if options.is_certified:
        return 0

    def is_below(k: int) -> bool:
        return bool(min(pessimism_at(k, *size, options.pessimism_coefficient), highest) < tau)

    above, below = 0, 1
    while not is_below(below) and below < MOST_EPISODES:
        above, below = below, 2 * below
    while below - above > 1:
        middle = (above + below) // 2
        above, below = (above, middle) if is_below(middle) else (middle, below)
    return above


def psrl_term(spec: CmdpSpec, episodes: int) -> float:
    """Lemma 2: H^1.5 sqrt(30 S^2 A K log(SAKH)) + 2H bounds what sampling in place of knowing can cost in K episodes."""
    horizon, log_sakh = spec.horizon, math.log(spec.num_states * spec.num_actions * episodes * spec.horizon)
    area = 30.0 * spec.num_states**2 * spec.num_actions * episodes * log_sakh
    return math.sqrt(horizon**3 * area) + 2.0 * horizon


def dual_variable_bound(spec: CmdpSpec, episodes: int, constraint: int = 0) -> float:
    """Lemma 4, eq. (12): the bound on E[lambda_{K+1}], with rho = (tau - c0) / 4 > 0 (the sign in the text is a slip)."""
    horizon, tau = spec.horizon, float(spec.cost_budgets[constraint])
    slack, first_feasible = _slack(spec, constraint), feasibility_episode(spec, constraint)
    rho = slack / 4.0
    zeta = rho / (horizon**2 + horizon * rho / 3.0)
    epsilon = _pessimism(spec, episodes + 1)
    eta = dual_scale_at(episodes + 1, horizon, tau, tau - slack)
    return (
        math.log(11.0 * horizon**2 / (3.0 * rho**2)) / zeta
        + horizon
        + pessimism_sum(spec, first_feasible)
        + first_feasible * (horizon - tau)
        + 4.0 * (horizon**2 + epsilon**2 + eta * horizon) / slack
    )


def constraint_regret_bound(spec: CmdpSpec, episodes: int, constraint: int = 0) -> float:
    """Section 6.1, with lemmas 2 and 4: E[constraint regret of K episodes] <= sampling + E[lambda_{K+1}] - sum of epsilon_k."""
    spent = pessimism_sum(spec, episodes, below=True)
    return psrl_term(spec, episodes) + dual_variable_bound(spec, episodes, constraint) - spent


def pessimism_sum(spec: CmdpSpec, last: float, *, below: bool = False) -> float:
    """Sum of epsilon_k for k = 1..last; beyond many terms bounded above, or `below`, by the integral (eq. (13)).

    2 sqrt(k log(kSAH)) is the integral of (log(kSAH) + 1) / sqrt(k log(kSAH)).
    """
    exact = int(min(last, EXACT_TERMS))
    total = _first_sums(spec.num_states, spec.num_actions, spec.horizon)[exact]
    if last > exact:
        sah = spec.num_states * spec.num_actions * spec.horizon
        scale = 2.0 * THEOREM * spec.horizon**1.5 * spec.num_states * math.sqrt(spec.num_actions)
        first = exact + below
        total += scale * (math.sqrt((last + below) * math.log((last + below) * sah)) - math.sqrt(first * math.log(first * sah)))
    return total


@lru_cache(maxsize=64)
def _first_sums(num_states: int, num_actions: int, horizon: int) -> list[float]:
    """The sums of the first 0 to EXACT_TERMS values of epsilon_k. Cached: an agent's status needs one of them."""
    terms = (pessimism_at(k, num_states, num_actions, horizon, THEOREM) for k in range(1, EXACT_TERMS + 1))
    return list(accumulate(terms, initial=0.0))


def _pessimism(spec: CmdpSpec, k: int) -> float:
    return pessimism_at(k, spec.num_states, spec.num_actions, spec.horizon, THEOREM)


def _slack(spec: CmdpSpec, constraint: int) -> float:
    return float(np.subtract(spec.cost_budgets, spec.satisfiable_costs)[constraint])
