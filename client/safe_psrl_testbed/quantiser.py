"""Quantises continuous observations to the numbered states of an agent."""

import hashlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.errors import SpecError
from safe_psrl_testbed.descriptions import description_of

Outside = Literal["clip", "refuse"]


class Quantiser:
    """One row of edges per dimension: n + 1 ascending edges make n bins, each with its lower edge; the last has both.

    States are numbered with the last dimension running fastest. Values beyond the outer edges go to the nearest bin, or
    with `outside="refuse"` raise a `SpecError`, as NaN always does. `features` extracts the numbers from an observation.
    """

    def __init__(
        self, edges: Sequence[ArrayLike], *, outside: Outside = "clip", features: Callable[[Any], ArrayLike] = np.asarray
    ) -> None:
        if outside not in {"clip", "refuse"}:
            raise SpecError("outside", outside, "must be clip or refuse")
        if not len(edges):
            raise SpecError("edges", edges, "must have a row for each dimension")
        self._edges = [_checked_edges(f"edges[{i}]", row) for i, row in enumerate(edges)]
        self._outside = outside
        self._features = features
        self.bins = tuple(len(row) - 1 for row in self._edges)
        self.num_states = prod(self.bins)

    @classmethod
    def even(
        cls,
        low: Sequence[float],
        high: Sequence[float],
        bins: Sequence[int],
        *,
        outside: Outside = "clip",
        features: Callable[[Any], ArrayLike] = np.asarray,
    ) -> Self:
        """Bins of equal width between `low` and `high`, so many in each dimension."""
        if any(number < 1 for number in bins):
            raise SpecError("bins", list(bins), "must have at least one bin in each dimension")
        edges = [np.linspace(a, b, number + 1) for a, b, number in zip(low, high, bins, strict=True)]
        return cls(edges, outside=outside, features=features)

    def description(self) -> str:
        """The same text for quantisers that number states alike: bins, a digest of the edges, and the features."""
        digest = hashlib.sha256(b"".join(edges.tobytes() for edges in self._edges)).hexdigest()[:12]
        bins = " x ".join(map(str, self.bins))
        return f"{bins} bins, edges {digest}, {self._outside}, {description_of(self._features)}"

    def __call__(self, observation: Any) -> int:
        """The state of `observation`, from 0 to `num_states` - 1."""
        numbers = np.atleast_1d(np.asarray(self._features(observation), np.float64))
        if numbers.shape != (len(self.bins),):
            raise SpecError("observation", observation, f"must give {len(self.bins)} numbers, one per row of edges")
        places = [self._place(i, float(number)) for i, number in enumerate(numbers)]
        return int(np.ravel_multi_index(places, self.bins))

    def _place(self, i: int, number: float) -> int:
        edges = self._edges[i]
        if np.isnan(number):
            raise SpecError(f"observation[{i}]", number, "is not a number")
        if self._outside == "refuse" and not edges[0] <= number <= edges[-1]:
            raise SpecError(f"observation[{i}]", number, f"is outside {edges[0]:g} to {edges[-1]:g}; widen the edges, or clip")
        place = int(np.searchsorted(edges, number, side="right")) - 1
        return min(max(place, 0), self.bins[i] - 1)


def _checked_edges(field: str, row: ArrayLike) -> NDArray[np.float64]:
    edges = np.asarray(row, np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        raise SpecError(field, edges, "must be two or more finite numbers, each above the one before")
    return edges
