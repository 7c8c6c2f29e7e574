"""Numbers for people: what is only a rounding error is 0."""

from typing import Final

ROUNDING: Final = 1e-12


def number_text(value: float, digits: int = 6) -> str:
    """`value` in at most so many digits."""
    return f"{0.0 if abs(value) < ROUNDING else value:.{digits}g}"


def estimate_text(mean: float, error: float) -> str:
    """A mean and its error or standard deviation."""
    return f"{number_text(mean, 4)} ± {number_text(error, 2)}"
