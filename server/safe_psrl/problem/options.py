"""Options of Safe PSRL, and of its memory in a world that changes."""

from dataclasses import dataclass
from typing import Final

from safe_psrl.errors import SpecError
from safe_psrl.problem.checks import checked_flag, checked_integer, checked_number

PESSIMISM_PRESETS: Final = {
    "theorem": 5.0,  # section 5: what the proof of the bounded violation uses
    "published": 0.05,  # the coefficient of the published curves, in place of the theorem's 5
    "literal": 0.25,  # the other reading of "scaled by 0.05": 0.05 * 5
}
CERTIFIED: Final = "certified"
METHODS: Final = (CERTIFIED, *PESSIMISM_PRESETS)
LARGEST: Final = 1e9  # of a coefficient: products with sizes and sums over episodes stay finite
DEFAULT_CONFIDENCE: Final = 0.98
DEFAULT_KERNEL_DRAWS: Final = 100


@dataclass(frozen=True)
class SafePsrlOptions:
    """method: `theorem`, `published` or `literal`, the paper's algorithm with the coefficient of that name; or `certified`.

    pessimism_coefficient: K_eps of the paper's algorithm, a number >= 0 or a name, in place of the method's.
    cap_pessimism: keep the paper's pessimism at or below (tau - c0) / 2. Below C'' episodes the tightened problem may be
    infeasible and the dual variable overshoots for thousands of episodes; the cap removes that and changes the constraint
    regret by a constant only.
    confidence: of the method `certified`, the probability with which each episode keeps its budgets, above 0.5 and below 1.
    max_kernel_draws: of the paper's algorithm. Kernels whose least achievable cost exceeds c0 contradict assumption 1 and are
    drawn again, up to this many draws an episode; 1 takes every draw. Where the costs guarantee the assumption, nothing is
    ever checked.
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
        max_kernel_draws: int | None = None,
    ) -> None:
        if not isinstance(method, str) or method not in METHODS:
            raise SpecError("method", method, f"must be one of {', '.join(METHODS)}")
        certified = method == CERTIFIED
        papers = {
            "pessimism_coefficient": pessimism_coefficient,
            "cap_pessimism": cap_pessimism,
            "max_kernel_draws": max_kernel_draws,
        }
        for field, value in papers.items():
            if certified and value is not None:
                raise SpecError(field, value, "belongs to the paper's algorithm: set method to published to use it")
        if confidence is not None and not certified:
            raise SpecError("confidence", confidence, "belongs to the method certified: set method to certified to use it")
        draws = DEFAULT_KERNEL_DRAWS if max_kernel_draws is None else max_kernel_draws
        coefficient = PESSIMISM_PRESETS.get(method, 0.0) if pessimism_coefficient is None else pessimism_coefficient
        checked = {
            "method": method,
            "pessimism_coefficient": _checked_coefficient(coefficient),
            "cap_pessimism": checked_flag("cap_pessimism", False if cap_pessimism is None else cap_pessimism),
            "confidence": _checked_confidence(DEFAULT_CONFIDENCE if confidence is None else confidence),
            "max_kernel_draws": checked_integer("max_kernel_draws", draws, 1, 1_000_000),
        }
        for name, entry in checked.items():
            object.__setattr__(self, name, entry)

    @property
    def is_certified(self) -> bool:
        return self.method == CERTIFIED


ON_DETECT: Final = ("alert", "forget", "pause")
DEFAULT_MEMORY_VISITS: Final = 100.0
DEFAULT_FALSE_ALARM_STEPS: Final = 1e6
FALSE_ALARM_CHANCE: Final = 0.1


@dataclass(frozen=True)
class DriftOptions:
    """detect: compare what is observed with what was learned (`posterior.drift`).

    memory_visits: visits of a row that the short memory goes back, above 1.
    false_alarm_steps: without a change, the probability that drift is detected within so many transitions is at most 10 %; > 1.
    on_detect: `alert` reports it and learns on; `forget` drops what is older than the short memory; `pause` stops new episodes.
    half_life_visits: visits of a row after which an observation counts half, for worlds that never stand still. None: all count
    alike for ever.
    """

    detect: bool = False
    memory_visits: float = DEFAULT_MEMORY_VISITS
    false_alarm_steps: float = DEFAULT_FALSE_ALARM_STEPS
    on_detect: str = "alert"
    half_life_visits: float | None = None

    def __post_init__(self) -> None:
        checked_flag("detect", self.detect)
        if not isinstance(self.on_detect, str) or self.on_detect not in ON_DETECT:
            raise SpecError("on_detect", self.on_detect, f"must be one of {', '.join(ON_DETECT)}")
        for field in ("memory_visits", "false_alarm_steps"):
            object.__setattr__(self, field, _above_one(field, getattr(self, field)))
        if self.half_life_visits is not None:
            object.__setattr__(self, "half_life_visits", _above_one("half_life_visits", self.half_life_visits))

    @property
    def alarm(self) -> float:
        """The sum of the statistics at which drift is detected."""
        return self.false_alarm_steps / FALSE_ALARM_CHANCE

    @property
    def keep(self) -> float:
        """What is left of a row's counts at each visit."""
        return 1.0 if self.half_life_visits is None else 0.5 ** (1.0 / self.half_life_visits)

    @property
    def keep_recent(self) -> float:
        """What is left of a row's short memory at each visit."""
        return 1.0 - 1.0 / self.memory_visits


def _above_one(field: str, value: object) -> float:
    number = checked_number(field, value)
    if not 1.0 < number <= LARGEST:
        raise SpecError(field, number, f"must be above 1 and at most {LARGEST:g}")
    return number


def _checked_coefficient(value: float | str) -> float:
    field = "pessimism_coefficient"
    if isinstance(value, str):
        if value not in PESSIMISM_PRESETS:
            raise SpecError(field, value, f"must be a number or one of {', '.join(PESSIMISM_PRESETS)}")
        return PESSIMISM_PRESETS[value]
    return _not_negative(field, value)


def _checked_confidence(value: object) -> float:
    number = checked_number("confidence", value)
    if not 0.5 < number < 1.0:
        raise SpecError("confidence", number, "must be a probability above 0.5 and below 1, such as 0.98")
    return number


def _not_negative(field: str, value: object) -> float:
    number = checked_number(field, value)
    if number < 0:
        raise SpecError(field, number, "must not be negative")
    if number > LARGEST:
        raise SpecError(field, number, f"must be at most {LARGEST:g}")
    return number
