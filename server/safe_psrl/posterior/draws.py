"""Drawing a transition kernel from the Dirichlet posterior (paper, eq. (7) and the line "Generate p_k").

A row is a vector of gamma draws, normalised. Gamma draws of small weights underflow (those of weight 0.001 mostly do), so rows
are drawn as logarithms.
"""

import math

import numpy as np

from safe_psrl.arrays import Floats, Words
from safe_psrl.compiled import compiled
from safe_psrl.posterior.streams import normal, uniform


@compiled
def draw_kernel(stream: Words, prior: Floats, counts: Floats, p: Floats) -> None:
    """p(.|s,a) ~ Dirichlet(prior + counts), independent rows; all [L, S, A, W]; `p` is written."""
    steps, num_states, num_actions, _ = p.shape
    for h in range(steps):
        for s in range(num_states):
            for a in range(num_actions):
                draw_row(stream, prior[h, s, a], counts[h, s, a], p[h, s, a])


@compiled
def draw_row(stream: Words, prior: Floats, counts: Floats, row: Floats) -> None:
    """One row. A next state with prior 0 is outside the support and gets 0; an unavailable action may have no others."""
    greatest, total = -np.inf, 0.0
    for t in range(row.size):
        if prior[t] > 0.0:
            row[t] = log_gamma_draw(stream, prior[t] + counts[t])
            greatest = max(greatest, row[t])
    for t in range(row.size):
        row[t] = math.exp(row[t] - greatest) if prior[t] > 0.0 else 0.0
        total += row[t]
    for t in range(row.size):
        row[t] = row[t] / total if total > 0.0 else 0.0


@compiled
def log_gamma_draw(stream: Words, shape: float) -> float:
    """The logarithm of a Gamma(shape) draw; below 1, of a Gamma(shape + 1) draw times U^(1/shape)."""
    if shape >= 1.0:
        return math.log(gamma_draw(stream, shape))
    boost = math.log(1.0 - uniform(stream)) / shape
    return boost + math.log(gamma_draw(stream, shape + 1.0))


@compiled
def gamma_draw(stream: Words, shape: float) -> float:
    """A Gamma(shape) draw for shape >= 1 (Marsaglia and Tsang, 2000, A Simple Method for Generating Gamma Variables)."""
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(stream)
        root = 1.0 + c * x
        if root <= 0.0:
            continue
        v = root * root * root
        u = 1.0 - uniform(stream)
        if u < 1.0 - 0.0331 * x * x * x * x or math.log(u) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
            return d * v
