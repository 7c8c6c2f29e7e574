"""Why an action is played in a task without episodes: what each available action changes, and what other budgets would.

An action's values are advantages. If the action is played once and the policy afterwards, the sums of reward and costs differ,
in the long run, from those of the policy alone by

    A(s, a) = signal(s, a) + (1 - restart) sum_t m(t|s, a) bias(t) - bias(s) - gain,

with gain and bias of `average_cost` under the posterior's mean m; weighted with the policy's probabilities they sum to 0. The
standard deviations are those of the kernel, by the delta method: a change of the row (t, b) changes A by the visits nu(t, b)
that the action adds, which may be negative, times the change of the row's mean bias. The uncertainty of learned rewards and
costs is not part of them.
"""

import numpy as np

from safe_psrl.arrays import Floats, Mask
from safe_psrl.continuing import ContinuingPsrl, EpochPlan
from safe_psrl.explanation import ActionValues, with_budgets
from safe_psrl.learner import AgentState, estimated_signals
from safe_psrl.methods.epoch import one_state
from safe_psrl.planning.average_cost import RESTART, added_visits, bias_of
from safe_psrl.posterior.uncertainty import Belief, belief_of
from safe_psrl.problem.checks import checked_integer, sealed


def action_advantages(learner: ContinuingPsrl, state: AgentState, probabilities: Floats, place: int) -> ActionValues:
    """What each action that is available in state `place` changes, under the policy [S, A]; `state` is settled."""
    spec, policy, stop = learner.spec, np.array(probabilities), np.zeros(1, np.bool_)
    checked_integer("state", place, 0, spec.num_states - 1)
    belief, initial = belief_of(spec.dirichlet_prior, spec.next_states, state.transition_counts), one_state(len(policy), place)
    known = belief.mean, belief.next_states
    signals = np.array(estimated_signals(spec, state.signal_sums, state.visits))[:, 0]
    actions = np.flatnonzero(spec.available_actions[place])
    added = np.zeros((len(actions), *policy.shape))
    for visits, action in zip(added, actions.tolist(), strict=True):
        added_visits(*known, policy, place, action, RESTART, visits, stop)
    values, variances = np.empty((2, len(actions), len(signals)))
    for n, signal in enumerate(signals):
        bias = np.zeros(spec.num_states)
        gain = bias_of(*known, signal, policy, initial, RESTART, bias, stop)  # the bias of `place` is 0
        means, spreads = _moments(belief, bias)
        values[:, n] = signal[place, actions] + (1.0 - RESTART) * means[place, actions] - gain
        variances[:, n] = (((1.0 - RESTART) * added) ** 2 * spreads / (belief.weight[0] + 1.0)).sum(axis=(1, 2))
    return ActionValues(
        actions=tuple(actions.tolist()),
        values=sealed(values),
        sigmas=sealed(np.sqrt(variances)),
        visits=sealed(state.transition_counts[0, place, actions].sum(axis=-1)),
        probabilities=sealed(policy[place, actions]),
    )


def epoch_plan_with_budgets(
    learner: ContinuingPsrl, state: AgentState, step: int, start: int, factor: float, stop: Mask | None = None
) -> EpochPlan | None:
    """The plan for the next epoch on the same sample if every budget were `factor` times as large, as `with_budgets`."""
    base = with_budgets(learner.base, factor)
    return None if base is None else ContinuingPsrl.over(base, learner.max_epoch_steps).plan(state, step, start, stop)


def _moments(belief: Belief, bias: Floats) -> tuple[Floats, Floats]:
    """[S, A]: mean and variance of `bias` [S] over the next state, under the posterior's mean."""
    mean = belief.mean[0]
    ahead = bias[belief.next_states[0]] if len(belief.next_states) else np.broadcast_to(bias, mean.shape)
    centre = (mean * ahead).sum(axis=-1)
    return centre, (mean * (ahead - centre[..., None]) ** 2).sum(axis=-1)
