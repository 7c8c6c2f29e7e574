"""What is known before the first episode, as counts: alpha = prior + counts. They are observations, not another prior, so that
drift can forget them."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.arrays import Floats
from safe_psrl.errors import SpecError
from safe_psrl.problem.checks import checked_table, frozen, refuse_where
from safe_psrl.problem.spec import CmdpSpec

MOST: Final = 1e12  # of the sum of the weights: one observation more is never lost to rounding
ROUNDING: Final = 1e-9


class InitialCounts(NamedTuple):
    """Weights; see `AgentState`. Sums and visits are for learned signals: both, or neither."""

    transition_counts: ArrayLike  # [L, S, A, W]
    signal_sums: ArrayLike | None = None  # [1+M, 1|H, S, A]
    visits: ArrayLike | None = None  # [1|H, S, A]


def checked_initial_counts(spec: CmdpSpec, known: InitialCounts) -> tuple[Floats, Floats, Floats]:
    """Transition counts, signal sums and visits as a state has them. Raises `SpecError` that names the field."""
    counts = _weights("transition_counts", known.transition_counts, spec.dirichlet_prior.shape)
    refuse_where("transition_counts", counts, (counts > 0) & ~spec.support, "must be 0 outside the support")
    if float(counts.sum()) > MOST:
        raise SpecError("sum of transition_counts", float(counts.sum()), f"must be at most {MOST:g}")
    signals = spec.signals if spec.learns_signals else spec.signals[:, :0]
    if known.signal_sums is None and known.visits is None:
        return counts, frozen(np.zeros(signals.shape), np.float64), frozen(np.zeros(signals.shape[1:]), np.float64)
    if not spec.learns_signals:
        raise SpecError("signal_sums", "given", "must be left out, as no signal is learned")
    if known.signal_sums is None or known.visits is None:
        raise SpecError("signal_sums", known.signal_sums, "must be given together with visits")
    sums = _weights("signal_sums", known.signal_sums, signals.shape)
    visits = _weights("visits", known.visits, signals.shape[1:])
    refuse_where("signal_sums", sums, sums > visits * (1 + ROUNDING), "must be at most the visits")
    excess = visits.sum(axis=0) > counts.sum(axis=(0, -1)) * (1 + ROUNDING)  # as forgetting takes their weight from the counts
    refuse_where("visits", visits, np.broadcast_to(excess, visits.shape), "must be at most the counts of the pair in total")
    return counts, sums, visits


def _weights(field: str, value: ArrayLike, shape: tuple[int, ...]) -> Floats:
    table: NDArray[np.float64] = checked_table(field, value, {str(list(shape)): shape})
    refuse_where(field, table, table < 0, "must not be negative")
    return frozen(table, np.float64)
