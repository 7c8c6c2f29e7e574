"""Certified plans for several constraints: the best mixture of policies, by column generation (Dantzig and Wolfe).

A small linear program finds the shares of the policies found so far whose bounds, mixed, keep every budget with the greatest
reward on the sample. Its dual variables are prices of the costs; the optimal policy at these prices is the next candidate,
until none improves the mixture. A mixture's bound is at most the mixture of bounds, so that what the program keeps is kept.
"""

import numpy as np
from scipy import optimize

from safe_psrl.arrays import Floats, Policy
from safe_psrl.methods.certified import CERTAIN, CONFIDENCE, NONE, bound_of, finish_draft
from safe_psrl.methods.episode import Draft, Problem
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import evaluate_policy
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.posterior.uncertainty import Belief, Observed, belief_of, least_cautious_cost, upper_signals

MAX_COLUMNS = 100
EXCESS_PRICE = 1e6  # of a budget that is not kept: rewards are at most the horizon
TOLERANCE = 1e-9


def begin_with_several(problem: Problem, observed: Observed, seed: int, k: int, draft: Draft) -> tuple[int, bool]:
    """`certified.begin_certified_episode` for several constraints."""
    draw_kernel(stream_of(seed, k, POSTERIOR), problem.prior, observed.counts, draft.p)
    belief = belief_of(problem.prior, problem.next_states, observed.counts)
    Columns(problem, upper_signals(observed, problem.z), belief, draft).search()
    if not draft.stop[0]:
        finish_draft(problem, observed.signals, belief, seed, k, draft)
    return 1, True


class Columns:
    """The policies found so far, each with its reward on the sample and its bounds."""

    def __init__(self, problem: Problem, signals: Floats, belief: Belief, draft: Draft) -> None:
        self._problem, self._signals, self._belief, self._draft = problem, signals, belief, draft
        self._policies: list[Policy] = []
        self._rewards: list[float] = []
        self._bounds: list[list[float]] = []
        self._bases: list[list[int]] = []

    def search(self) -> None:
        """Write the mixture, its shares, the certificates and their basis into the draft."""
        problem, belief = self._problem, self._belief
        costs = (*self._signals[1:], (self._signals[1:] / problem.tau[:, None, None, None]).mean(axis=0))
        cautious = [np.empty_like(self._draft.policy) for _ in range(2 * len(costs))]
        certain = [
            least_cautious_cost(
                belief, np.ones_like(belief.doubt), cost, problem.available, policy, problem.initial, self._draft.stop
            )
            for cost, policy in zip(costs, cautious, strict=False)
        ]
        if (np.array(certain[:-1]) >= problem.tau).any():
            belief.doubt[:] = 0.0
        for cost, policy in zip(costs, cautious[len(costs) :], strict=True):
            least_cautious_cost(belief, belief.doubt, cost, problem.available, policy, problem.initial, self._draft.stop)
        for policy in (self._optimal(np.zeros(problem.tau.size)), *cautious):
            self._add(policy)
        shares, prices, value = self._mixture()
        while len(self._policies) < MAX_COLUMNS and not self._draft.stop[0]:
            candidate = self._optimal(prices)
            self._add(candidate)
            if self._rewards[-1] - prices @ self._bounds[-1] <= value + TOLERANCE * (1.0 + abs(value)):
                break
            shares, prices, value = self._mixture()
        self._write(shares)

    def _optimal(self, prices: Floats) -> Policy:
        policy, draft = np.empty_like(self._draft.policy), self._draft
        weights = np.array([1.0, *-prices])
        available = self._problem.available
        plan_policy(draft.p, self._problem.next_states, self._signals, weights, available, policy, draft.values, draft.stop)
        return policy

    def _add(self, policy: Policy) -> None:
        problem, values = self._problem, self._draft.values
        evaluate_policy(self._draft.p, problem.next_states, self._signals, policy, values)
        found = [
            bound_of(self._belief, self._signals[1 + i], policy, problem.initial, float(tau), problem.z)
            for i, tau in enumerate(problem.tau)
        ]
        self._policies.append(policy)
        self._rewards.append(float(problem.initial @ values[0]))
        self._bounds.append([bound for bound, _ in found])
        self._bases.append([basis for _, basis in found])

    def _mixture(self) -> tuple[Floats, Floats, float]:
        """The best shares, the prices of the costs, and the value of a policy that neither improves nor worsens the mixture.

        The last variable is by how much the budgets are exceeded, 0 wherever that is possible.
        """
        tau, bounds = self._problem.tau, np.array(self._bounds).T
        result = optimize.linprog(
            [*(-reward for reward in self._rewards), EXCESS_PRICE],
            A_ub=np.column_stack([bounds, -np.ones(tau.size)]),
            b_ub=tau,
            A_eq=[[*np.ones(len(self._policies)), 0.0]],
            b_eq=[1.0],
            method="highs",
        )
        return np.asarray(result.x[:-1]), -np.asarray(result.ineqlin.marginals), -float(result.eqlin.marginals[0])

    def _write(self, shares: Floats) -> None:
        """The policies with a share are at most one more than the constraints: a basic solution."""
        draft, tau = self._draft, self._problem.tau
        padded = np.append(shares, np.zeros(len(self._policies) - len(shares)))
        parts = np.argsort(-padded)[: draft.shares.size]
        draft.shares[:] = 0.0
        draft.shares[: len(parts)] = padded[parts] / padded[parts].sum()
        for place, part in enumerate(parts):
            draft.mixture[place] = self._policies[part]
        used = [part for part, share in zip(parts, draft.shares, strict=False) if share > 0.0]
        draft.certificate[:] = draft.shares[: len(parts)] @ np.array(self._bounds)[parts]
        if (draft.certificate > tau + TOLERANCE * (1.0 + tau)).any():
            draft.basis[0] = NONE
        else:
            certain = all(basis == CERTAIN for part in used for basis in self._bases[part])
            draft.basis[0] = CERTAIN if certain else CONFIDENCE
