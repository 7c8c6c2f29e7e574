"""How pessimism shrinks and the dual scale grows with the episode (paper, section 5, the algorithm's first two lines)."""

import math

from safe_psrl.compiled import compiled


@compiled
def pessimism_at(k: int, num_states: int, num_actions: int, horizon: int, k_epsilon: float) -> float:
    """epsilon_k = K_eps H^1.5 sqrt(S^2 A) (log(kSAH) + 1) / sqrt(k log(kSAH)).

    The formula divides by log 1 = 0 where k = S = A = H = 1; that one logarithm is taken as log 2.
    """
    log_ksah = math.log(max(2.0, float(k) * num_states * num_actions * horizon))
    scale = k_epsilon * horizon * math.sqrt(horizon) * num_states * math.sqrt(num_actions)
    return scale * (log_ksah + 1.0) / math.sqrt(k * log_ksah)


@compiled
def dual_scale_at(k: int, horizon: int, tau: float, c0: float) -> float:
    """eta_k = (tau - c0) H sqrt(k)."""
    return (tau - c0) * horizon * math.sqrt(k)


@compiled
def dual_update(lambda_k: float, predicted_cost: float, epsilon_k: float, tau: float) -> float:
    """lambda_{k+1} = max(0, lambda_k + V_1^{pi_k}(c, p_k) + epsilon_k - tau)."""
    return max(0.0, lambda_k + predicted_cost + epsilon_k - tau)
