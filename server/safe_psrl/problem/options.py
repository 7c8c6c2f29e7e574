"""Options of Safe PSRL."""

from dataclasses import dataclass
from typing import Final

from safe_psrl.errors import SpecError
from safe_psrl.problem.checks import checked_flag, checked_integer, checked_number

PESSIMISM_PRESETS: Final = {
    "theorem": 5.0,  # section 5: what the proof of the bounded violation uses
    "published": 0.05,  # the coefficient of the published curves, in place of the theorem's 5
    "literal": 0.25,  # the other reading of "scaled by 0.05": 0.05 * 5
}
ADAPTIVE: Final = "adaptive"
METHODS: Final = (*PESSIMISM_PRESETS, ADAPTIVE)
LARGEST: Final = 1e9  # of a coefficient: products with sizes and sums over episodes stay finite
DEFAULT_CONFIDENCE: Final = 2.5  # measured: see docs/adaptive.md


@dataclass(frozen=True)
class SafePsrlOptions:
    """method: `theorem`, `published` or `literal`, the paper's algorithm with the coefficient of that name; or `adaptive`.

    pessimism_coefficient: K_eps of the paper's algorithm, a number >= 0 or a name, in place of the method's.
    cap_pessimism: keep the paper's pessimism at or below (tau - c0) / 2. Below C'' episodes the tightened problem may be
    infeasible and the dual variable overshoots for thousands of episodes; the cap removes that and changes the constraint
    regret by a constant only.
    confidence: of the adaptive method, how many standard deviations of the plan's cost the budget is tightened by.
    max_kernel_draws: kernels whose least achievable cost exceeds c0 contradict assumption 1 and are drawn again, up to
    this many draws an episode; 1 takes every draw. Where the costs guarantee the assumption, nothing is ever checked.
    """

    method: str
    pessimism_coefficient: float
    cap_pessimism: bool
    confidence: float
    max_kernel_draws: int

    def __init__(
        self,
        method: str = "published",
        pessimism_coefficient: float | str | None = None,
        cap_pessimism: bool | None = None,
        confidence: float | None = None,
        max_kernel_draws: int = 100,
    ) -> None:
        if not isinstance(method, str) or method not in METHODS:
            raise SpecError("method", method, f"must be one of {', '.join(METHODS)}")
        adaptive = method == ADAPTIVE
        for field, value in (("pessimism_coefficient", pessimism_coefficient), ("cap_pessimism", cap_pessimism)):
            if adaptive and value is not None:
                raise SpecError(field, value, "belongs to the paper's algorithm, not to the adaptive method")
        if confidence is not None and not adaptive:
            raise SpecError("confidence", confidence, "belongs to the adaptive method")
        coefficient = PESSIMISM_PRESETS.get(method, 0.0) if pessimism_coefficient is None else pessimism_coefficient
        checked = {
            "method": method,
            "pessimism_coefficient": _checked_coefficient(coefficient),
            "cap_pessimism": checked_flag("cap_pessimism", False if cap_pessimism is None else cap_pessimism),
            "confidence": _not_negative("confidence", DEFAULT_CONFIDENCE if confidence is None else confidence),
            "max_kernel_draws": checked_integer("max_kernel_draws", max_kernel_draws, 1, 1_000_000),
        }
        for name, entry in checked.items():
            object.__setattr__(self, name, entry)

    @property
    def is_adaptive(self) -> bool:
        return self.method == ADAPTIVE


def _checked_coefficient(value: float | str) -> float:
    field = "pessimism_coefficient"
    if isinstance(value, str):
        if value not in PESSIMISM_PRESETS:
            raise SpecError(field, value, f"must be a number or one of {', '.join(PESSIMISM_PRESETS)}")
        return PESSIMISM_PRESETS[value]
    return _not_negative(field, value)


def _not_negative(field: str, value: object) -> float:
    number = checked_number(field, value)
    if number < 0:
        raise SpecError(field, number, "must not be negative")
    if number > LARGEST:
        raise SpecError(field, number, f"must be at most {LARGEST:g}")
    return number
