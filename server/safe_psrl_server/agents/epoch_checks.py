"""Checks of the epochs of an imported agent. Each raises ValueError."""

import numpy as np

from safe_psrl_server.agents.episode import Episode

ROUNDING = 1e-9


def check_epoch(epoch: Episode) -> None:
    """Its policy fits the problem, and its steps those of the task."""
    spec, started = epoch.definition.spec, epoch.started
    pairs = spec.num_states, spec.num_actions
    if started.policy.num_states != spec.num_states or len(started.policy.probabilities) != pairs[0] * pairs[1]:
        raise ValueError("its policy has the wrong size")
    policy = np.asarray(epoch.policy, np.float64)
    if not (np.isfinite(policy).all() and (policy >= 0).all() and (np.abs(policy.sum(axis=1) - 1) <= ROUNDING).all()):
        raise ValueError("its policy has impossible probabilities")
    if (policy[~spec.available_actions] > 0).any():
        raise ValueError("its policy has actions that are not available")
    if not (started.HasField("state") and 0 <= started.state < spec.num_states and 0 <= started.first_step <= 2**53):
        raise ValueError("it begins nowhere")
    if not all(np.isfinite(pair.before) and pair.before >= 0 for pair in epoch.pairs.values()):
        raise ValueError("its visits before are impossible")
