"""What a policy achieves under the posterior, with all of its uncertainty: for comparing a plan with the controller in charge.

The variance of a value is that of the kernel, by the delta method (`posterior.uncertainty`), and that of learned rewards or
costs: the mean of n observations in [0, 1] with the sum x varies at most like a Beta(1 + x, 1 + n - x) variable and counts with
the square of how often the policy plays its pair. Errors of the kernel and of learned signals are taken as independent.
"""

from dataclasses import dataclass

import numpy as np

from safe_psrl.arrays import Floats, Policies
from safe_psrl.learner import AgentState, SafePsrl, estimated_signals
from safe_psrl.methods.epoch import one_state
from safe_psrl.planning.average_cost import RESTART, occupancy_of
from safe_psrl.planning.evaluation import as_probabilities, occupancy
from safe_psrl.posterior.average_uncertainty import average_and_variance
from safe_psrl.posterior.uncertainty import Belief, belief_of, cautious_costs, value_and_variance
from safe_psrl.problem.checks import sealed


@dataclass(frozen=True, eq=False, slots=True)
class PolicyValues:
    """Expected reward and costs, [1+M], and their standard deviations, [1+M]: of an episode, or averages per step."""

    means: Floats
    sigmas: Floats


def episode_values(learner: SafePsrl, state: AgentState, mixture: Policies, shares: Floats) -> PolicyValues:
    """Of policies `mixture` [N, H, S] of which one is drawn with its share before the episode; `state` is settled."""
    spec = learner.spec
    belief = belief_of(spec.dirichlet_prior, spec.next_states, state.transition_counts)
    belief.doubt.fill(0.0)
    signals = np.array(estimated_signals(spec, state.signal_sums, state.visits))
    policies, weights = np.array(mixture), np.array(shares)
    found = np.array([value_and_variance(belief, signal, policies, weights, spec.initial_distribution) for signal in signals])
    variances = found[:, 1]
    if spec.learns_signals:
        variances = variances + _signal_variances(learner, state, belief, policies, weights)
    return PolicyValues(sealed(found[:, 0]), sealed(np.sqrt(np.maximum(variances, 0.0))))


def average_values(learner: SafePsrl, state: AgentState, probabilities: Floats, start: int) -> PolicyValues:
    """Of a stationary policy [S, A] of a continuing task, from the state `start`: averages per step; `state` is settled."""
    spec, policy, stop = learner.spec, np.array(probabilities), np.zeros(1, np.bool_)
    belief, initial = belief_of(spec.dirichlet_prior, spec.next_states, state.transition_counts), one_state(len(policy), start)
    belief.doubt.fill(0.0)
    signals = np.array(estimated_signals(spec, state.signal_sums, state.visits))
    found = np.array([average_and_variance(belief, belief.doubt, one[0], policy, initial, stop) for one in signals])
    variances = found[:, 1]
    if spec.learns_signals:
        reached = np.zeros(spec.num_states)
        occupancy_of(belief.mean, spec.next_states, policy, initial, RESTART, reached, stop)
        variances = variances + _variances_of(learner, state, (reached[:, None] * policy)[None])
    return PolicyValues(sealed(found[:, 0]), sealed(np.sqrt(np.maximum(variances, 0.0))))


def reward_doubt(learner: SafePsrl, state: AgentState, mixture: Policies, shares: Floats) -> float:
    """By how much their expected reward may be too high, as the posterior cannot know what it has not seen.

    A row with few visits counts as its worst next state with its share of doubt (`posterior.uncertainty`): beside a controller
    that never plays an action, a plan with that action rests on nothing but the prior.
    """
    spec = learner.spec
    belief = belief_of(spec.dirichlet_prior, spec.next_states, state.transition_counts)
    missed = 1.0 - np.array(estimated_signals(spec, state.signal_sums, state.visits)[0])  # least where the reward is greatest
    certain, doubt = np.zeros_like(belief.doubt), 0.0
    for policy, share in zip(np.array(mixture), shares.tolist(), strict=True):
        first = [cautious_costs(belief, doubts, missed, policy)[0] for doubts in (belief.doubt, certain)]
        doubt += share * float(spec.initial_distribution @ (first[0] - first[1]))
    return doubt


def average_reward_doubt(learner: SafePsrl, state: AgentState, probabilities: Floats, start: int) -> float:
    """The same of a stationary policy [S, A] of a continuing task, from the state `start`: per step."""
    spec, policy, stop = learner.spec, np.array(probabilities), np.zeros(1, np.bool_)
    belief, initial = belief_of(spec.dirichlet_prior, spec.next_states, state.transition_counts), one_state(len(policy), start)
    missed = 1.0 - np.array(estimated_signals(spec, state.signal_sums, state.visits)[0, 0])
    certain = np.zeros_like(belief.doubt)
    doubted, trusted = (
        average_and_variance(belief, doubts, missed, policy, initial, stop)[0] for doubts in (belief.doubt, certain)
    )
    return min(1.0, doubted - trusted)  # infinite if the worst next states were not found


def _signal_variances(learner: SafePsrl, state: AgentState, belief: Belief, mixture: Policies, shares: Floats) -> Floats:
    """[1+M]: what the uncertainty of learned signals adds to the variances of the values."""
    spec = learner.spec
    played = np.zeros((spec.horizon, spec.num_states, spec.num_actions))
    for policy, share in zip(mixture, shares, strict=True):
        probabilities = as_probabilities(policy, spec.num_actions)
        played += share * occupancy(belief.mean, belief.next_states, probabilities, spec.initial_distribution)
    return _variances_of(learner, state, played.sum(axis=0, keepdims=True) if len(state.visits) == 1 else played)


def _variances_of(learner: SafePsrl, state: AgentState, played: Floats) -> Floats:
    """[1+M], if the pairs of a step are `played` [1|H, S, A] so often."""
    above, below = 1.0 + state.signal_sums, 1.0 + np.maximum(state.visits - state.signal_sums, 0.0)
    beta = above * below / ((above + below) ** 2 * (above + below + 1.0))
    return np.asarray(np.where(learner.spec.learned, played**2 * beta, 0.0).sum(axis=(1, 2, 3)), np.float64)
