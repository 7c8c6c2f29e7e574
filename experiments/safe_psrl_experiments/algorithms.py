"""The algorithms that an experiment can run, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Protocol

from safe_psrl.documents import options_from_document, options_to_document
from safe_psrl.errors import SpecError
from safe_psrl.learner import SafePsrl
from safe_psrl.planning import Floats
from safe_psrl.simulation import Ledger, SimulatedRun
from safe_psrl.spec import CmdpSpec


class Run(Protocol):
    """A learner playing in a simulated world, with its books."""

    episode: int
    ledger: Ledger

    @property
    def dual_variables(self) -> Floats: ...

    @property
    def pessimism(self) -> Floats: ...

    def advance(self, episodes: int) -> None: ...


@dataclass(frozen=True)
class Algorithm:
    """`start` makes a run of (specification, kernel, parameters, seed); it refuses parameters that it does not know.

    `settings` are the parameters that it then runs with, those left at their defaults included.
    """

    name: str
    summary: str
    start: Callable[[CmdpSpec, Floats, dict[str, Any], int], Run]
    settings: Callable[[dict[str, Any]], dict[str, Any]]


def _safe_psrl(spec: CmdpSpec, transitions: Floats, parameters: dict[str, Any], seed: int) -> Run:
    learner = SafePsrl(spec, options_from_document(parameters), seed)
    return SimulatedRun(learner, transitions, environment_seed=seed)


def _safe_psrl_settings(parameters: dict[str, Any]) -> dict[str, Any]:
    return options_to_document(options_from_document(parameters))


ALGORITHMS: Final = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "safe-psrl", "posterior sampling with a pessimistic dual variable (the paper's)", _safe_psrl, _safe_psrl_settings
        ),
    )
}


def algorithm_named(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        close = get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpecError("algorithm", name, f"must be one of {', '.join(ALGORITHMS)}{hint}")
    return ALGORITHMS[name]
