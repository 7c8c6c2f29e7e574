"""Numbers for people."""

import pytest

from safe_psrl_console.number_text import estimate_text, number_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.586e-15, "0"), (-5.3e-18, "0"), (-0.0, "0"), (2e-12, "2e-12"), (-0.25, "-0.25"), (1234567.0, "1.23457e+06")],
)
def test_rounding_errors_are_zero(value: float, text: str) -> None:
    assert number_text(value) == text


def test_estimates() -> None:
    assert estimate_text(2.0, 5.3e-18) == "2 ± 0"
    assert estimate_text(1.23456, 0.0123) == "1.235 ± 0.012"
