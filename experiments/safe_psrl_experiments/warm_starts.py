"""What a run may begin with: the counts of a log of episodes in which every action was chosen at random."""

from dataclasses import dataclass
from typing import Any, Final

from safe_psrl.arrays import Floats
from safe_psrl.errors import SpecError
from safe_psrl.learner import SafePsrl, blank_state
from safe_psrl.posterior.initial_counts import InitialCounts
from safe_psrl.posterior.streams import ACTIONS, generator_of
from safe_psrl.problem.checks import checked_integer, checked_number
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.transition import Transition
from safe_psrl_testbed import TabularEnvironment, scenario_named

MOST_EPISODES: Final = 1_000_000
MOST_WEIGHT: Final = 1e6
LOG_SEEDS: Final = 2**32  # added to a run's seed: the log's episodes are not those of the run


@dataclass(frozen=True)
class LogOptions:
    """episodes: of the log. weight: of each of its rows. environment: where it was recorded, by default the run's own."""

    episodes: int
    weight: float = 1.0
    environment: str = ""

    def __post_init__(self) -> None:
        checked_integer("episodes", self.episodes, 1, MOST_EPISODES)
        if not 0.0 < checked_number("weight", self.weight) <= MOST_WEIGHT:
            raise SpecError("weight", self.weight, f"must be above 0 and at most {MOST_WEIGHT:g}")


def log_options(parameters: dict[str, Any]) -> LogOptions:
    """Raises a `SpecError` that names the parameter."""
    known = LogOptions.__dataclass_fields__
    for name, value in parameters.items():
        if name not in known:
            raise SpecError(f"warm_start.{name}", value, f"is not one of {', '.join(known)}")
    if "episodes" not in parameters:
        raise SpecError("warm_start.episodes", None, "is missing: it is the number of episodes of the log")
    return LogOptions(**parameters)


def logged_counts(spec: CmdpSpec, transitions: Floats, seed: int, log: LogOptions) -> InitialCounts:
    """The weighted counts of such a log, in the kernel `transitions` unless it was recorded elsewhere."""
    learner, tables = SafePsrl(spec), blank_state(spec).tables.copy()
    kernel = scenario_named(log.environment).transitions_for(seed) if log.environment else transitions
    environment = TabularEnvironment(spec, kernel, seed=seed + LOG_SEEDS)
    chosen = generator_of(seed + LOG_SEEDS, 0, ACTIONS)
    choices = [available.nonzero()[0] for available in spec.available_actions]
    for _ in range(log.episodes):
        state = environment.reset()
        for step in range(spec.horizon):
            action = int(choices[state][int(chosen.random() * len(choices[state]))])
            seen = environment.step(action)
            learner.count(tables, Transition(step, state, action, seen.next_state, seen.reward, seen.costs))
            state = seen.next_state
    known = [log.weight * table for table in tables[:3]]
    return InitialCounts(*known) if spec.learns_signals else InitialCounts(known[0])
