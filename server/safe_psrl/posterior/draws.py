"""Drawing a transition kernel from the Dirichlet posterior (paper, eq. (7) and the line "Generate p_k")."""

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Words
from safe_psrl.compiled import compiled
from safe_psrl.giving_way import done_since
from safe_psrl.posterior.sfc64 import bits_of, gamma_draw, uniform

DRAWS_AT_A_STRETCH = 2_000  # about 60 us
SMALLEST_SUM = 1e-290  # below it, gamma draws have lost digits to underflow


@compiled
def draw_kernel(
    stream: Words,
    prior: NDArray[np.float64],
    counts: NDArray[np.int64],
    p: NDArray[np.float64],
) -> None:
    """p(.|s,a) ~ Dirichlet(prior + counts), independent rows; all [L, S, A, W]; `p` is written."""
    steps, num_states, num_actions, width = p.shape
    drawn = 0
    for h in range(steps):
        for s in range(num_states):
            for a in range(num_actions):
                draw_row(stream, prior[h, s, a], counts[h, s, a], p[h, s, a])
                drawn = done_since(drawn + width, DRAWS_AT_A_STRETCH)


@compiled
def draw_row(
    stream: Words,
    prior: NDArray[np.float64],
    counts: NDArray[np.int64],
    row: NDArray[np.float64],
) -> None:
    """One row: normalised gamma draws. A next state with prior 0 is outside the support and stays at 0."""
    bits, total = bits_of(stream), 0.0
    for t in range(row.size):
        row[t] = gamma_draw(bits, prior[t] + counts[t]) if prior[t] > 0.0 else 0.0
        total += row[t]
    if total < SMALLEST_SUM:
        draw_tiny_row(stream, prior, counts, row)
        return
    scale = 1.0 / total
    for t in range(row.size):
        row[t] *= scale


@compiled
def draw_tiny_row(
    stream: Words,
    prior: NDArray[np.float64],
    counts: NDArray[np.int64],
    row: NDArray[np.float64],
) -> None:
    """A row whose gamma draws all underflow, as those of tiny weights do: drawn again, by logarithms.

    A Gamma(a) draw is a Gamma(a+1) draw times U^(1/a). The direction of a vector of gamma draws is independent of its
    length, so drawing anew because the length was too small does not bend the distribution.
    """
    bits, greatest = bits_of(stream), -np.inf
    for t in range(row.size):
        row[t] = -np.inf
        if prior[t] > 0.0:
            alpha = prior[t] + counts[t]
            row[t] = np.log(1.0 - uniform(stream)) / alpha
            row[t] += np.log(gamma_draw(bits, alpha + 1.0))
            greatest = max(greatest, row[t])
    if greatest == -np.inf:  # no next state is possible: an unavailable action of the specification
        row[:] = 0.0
        return
    total = 0.0
    for t in range(row.size):
        row[t] = np.exp(row[t] - greatest)
        total += row[t]
    row /= total
