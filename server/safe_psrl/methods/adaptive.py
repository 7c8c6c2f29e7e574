"""Adaptive pessimism: the posterior's uncertainty in place of the schedule, an exact plan in place of the dual update.

At the start of an episode, on the sampled kernel p_k:

1. plan exactly at the budget tau; sigma is the posterior's standard deviation of that plan's cost (`uncertainty`), rows being
   smoothed by confidence^2 observations;
2. epsilon_k = min(confidence * sigma, 0.9 tau);
3. plan exactly at the budget tau - epsilon_k (of least cost if that cannot be kept), and play it: a randomised policy.

It needs no state but the counts. The theorem's guarantee is for the paper's schedule, not for this.
"""

from safe_psrl.arrays import Counts, Floats, Policy
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import Draft, Problem, draw_satisfiable_kernel
from safe_psrl.methods.schedule import dual_scale_at
from safe_psrl.planning.evaluation import dot, evaluate_randomised
from safe_psrl.planning.optimum import policy_from_occupancy, solve_cmdp
from safe_psrl.posterior.streams import ACTIONS, stream_of, uniform
from safe_psrl.posterior.uncertainty import cost_deviation, smoothed_mean
from safe_psrl.problem.spec import CmdpSpec

LARGEST_SHARE = 0.9  # of the budget, that pessimism may take


@compiled
def begin_adaptive_episode(
    problem: Problem, signals: Floats, cost_visits: Counts, seed: int, k: int, counts: Counts, draft: Draft
) -> tuple[int, bool]:
    """Write the plan of episode `k` for one constraint; return the kernels drawn, and whether the last satisfies c0.

    `cost_visits` [1|H, S, A] are the observations behind a learned cost; no rows if it is known.
    """
    tau = problem.tau[0]
    draws, satisfied = draw_satisfiable_kernel(problem, signals, seed, k, counts, draft)
    solve_cmdp(draft.p, problem.next_states, signals, problem.available, problem.initial, tau, draft.probabilities, draft.stop)
    mean, weight = smoothed_mean(problem.prior, counts, problem.confidence**2)
    sigma = cost_deviation(mean, problem.next_states, weight, signals[1], draft.probabilities, problem.initial, cost_visits)
    draft.pessimism[0] = min(problem.confidence * sigma, LARGEST_SHARE * tau)
    tightened = tau - draft.pessimism[0]
    solve_cmdp(
        draft.p, problem.next_states, signals, problem.available, problem.initial, tightened, draft.probabilities, draft.stop
    )
    finish_draft(problem, signals, seed, k, draft)
    return draws, satisfied


@compiled
def finish_draft(problem: Problem, signals: Floats, seed: int, k: int, draft: Draft) -> None:
    """Write the values of the probabilities under the sample, and the actions that this episode plays.

    One uniform number per step selects the actions of all states. A step occurs once per episode, so the distribution is that
    of the randomised policy.
    """
    evaluate_randomised(draft.p, problem.next_states, signals, draft.probabilities, draft.values)
    stream = stream_of(seed, k, ACTIONS)
    for h in range(draft.policy.shape[0]):
        realise_step(draft.probabilities, draft.policy, h, uniform(stream))
    for i in range(draft.dual_next.size):
        draft.predicted_costs[i] = dot(problem.initial, draft.values[1 + i])
        draft.dual_next[i] = 0.0
        draft.dual_scale[i] = dual_scale_at(k, draft.policy.shape[0], problem.tau[i], problem.c0[i])


@compiled
def realise_step(probabilities: Floats, policy: Policy, h: int, share: float) -> None:
    """Write the actions that `share` falls on at step `h`."""
    for s in range(policy.shape[1]):
        rest = share
        for a in range(probabilities.shape[2]):
            if probabilities[h, s, a] > 0.0:
                policy[h, s] = a  # the last possible one, should rounding leave a rest
                rest -= probabilities[h, s, a]
                if rest < 0.0:
                    break


def begin_adaptive_with_several(
    problem: Problem, spec: CmdpSpec, visits: Counts, seed: int, k: int, counts: Counts, draft: Draft
) -> tuple[int, bool]:
    """The same for several constraints, by linear programs. `spec` has the signals as they are estimated now."""
    from safe_psrl.planning.linear_program import safest_occupancy  # noqa: PLC0415  # scipy's optimisers load slowly

    signals, tau = spec.signals, spec.cost_budgets
    draws, satisfied = draw_satisfiable_kernel(problem, signals, seed, k, counts, draft)
    mean, weight = smoothed_mean(problem.prior, counts, problem.confidence**2)

    def plan(budgets: Floats) -> None:
        draft.probabilities[:] = safest_occupancy(spec, draft.p, budgets)
        policy_from_occupancy(draft.probabilities, spec.available_actions)

    plan(tau)
    for i, learned in enumerate(spec.learned_signals[1:]):
        seen = visits if learned else visits[:0]
        sigma = cost_deviation(mean, problem.next_states, weight, signals[1 + i], draft.probabilities, problem.initial, seen)
        draft.pessimism[i] = min(problem.confidence * sigma, LARGEST_SHARE * tau[i])
    plan(tau - draft.pessimism)
    finish_draft(problem, signals, seed, k, draft)
    return draws, satisfied
