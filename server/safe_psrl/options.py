"""How Safe PSRL is set, apart from the problem that it learns."""

from dataclasses import dataclass
from typing import Final

from safe_psrl.checks import checked_flag, checked_integer, checked_number
from safe_psrl.errors import SpecError

PESSIMISM_PRESETS: Final = {
    "theorem": 5.0,  # section 5: what the proof of the bounded violation uses
    "published": 0.05,  # the coefficient of the published curves, in place of the theorem's 5
    "literal": 0.25,  # the other reading of "scaled by 0.05": 0.05 * 5
}


@dataclass(frozen=True)
class SafePsrlOptions:
    """pessimism_coefficient: K_eps, a number >= 0 or the name of a preset.

    cap_pessimism: keep the pessimism at or below (tau - c0) / 2. Below C'' episodes the tightened problem may be
    infeasible and the dual variable overshoots for thousands of episodes; the cap removes that and changes the constraint
    regret by a constant only.
    max_kernel_draws: kernels whose least achievable cost exceeds c0 contradict assumption 1 and are drawn again, up to
    this many draws an episode; 1 takes every draw. Where the costs guarantee the assumption, nothing is ever checked.
    """

    pessimism_coefficient: float = PESSIMISM_PRESETS["published"]
    cap_pessimism: bool = False
    max_kernel_draws: int = 100

    def __init__(
        self,
        pessimism_coefficient: float | str = "published",
        cap_pessimism: bool = False,
        max_kernel_draws: int = 100,
    ) -> None:
        object.__setattr__(self, "pessimism_coefficient", _checked_coefficient(pessimism_coefficient))
        object.__setattr__(self, "cap_pessimism", checked_flag("cap_pessimism", cap_pessimism))
        object.__setattr__(self, "max_kernel_draws", checked_integer("max_kernel_draws", max_kernel_draws, 1, 1_000_000))


def _checked_coefficient(value: float | str) -> float:
    field = "pessimism_coefficient"
    if isinstance(value, str):
        if value not in PESSIMISM_PRESETS:
            raise SpecError(field, value, f"must be a number or one of {', '.join(PESSIMISM_PRESETS)}")
        return PESSIMISM_PRESETS[value]
    number = checked_number(field, value)
    if number < 0:
        raise SpecError(field, number, "must not be negative")
    return number
