"""The algorithms that an experiment can run, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.errors import SpecError
from safe_psrl.learner import SafePsrl
from safe_psrl.problem.documents import options_from_document, options_to_document
from safe_psrl.problem.options import ADAPTIVE
from safe_psrl.problem.presets import factored_toy
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, SimulatedRun
from safe_psrl.warm_up import warm_up
from safe_psrl_experiments.baselines.cmdp_psrl import CmdpPsrlRun
from safe_psrl_experiments.baselines.dope import DopeRun
from safe_psrl_experiments.baselines.optcmdp import OptCmdpRun
from safe_psrl_experiments.baselines.optpess_lp import OptPessLpRun
from safe_psrl_experiments.baselines.optpess_primaldual import DEFAULT_COEFFICIENT, OptPessPrimalDualRun
from safe_psrl_experiments.baselines.psrl import PsrlRun
from safe_psrl_experiments.baselines.safe_baseline import SafeBaselineRun

ALL: Final = "all"
Parameters = dict[str, Any]


class Run(Protocol):
    """A learner playing in a simulated world, with its books."""

    episode: int
    ledger: Ledger

    @property
    def dual_variables(self) -> Floats: ...

    @property
    def pessimism(self) -> Floats: ...

    @property
    def tables(self) -> dict[str, NDArray[np.generic]]:
        """Every array that an episode changes, by name: with `episode`, all that is needed to go on elsewhere."""
        ...

    def advance(self, episodes: int) -> None: ...


@dataclass(frozen=True)
class Algorithm:
    """`start` makes a run of (specification, kernel, parameters, seed, episodes to come).

    `settings` are the parameters that it then runs with, those left at their defaults included; both refuse unknown ones.
    `told` is what it knows beyond the problem and the data.
    """

    name: str
    summary: str
    told: str
    start: Callable[[CmdpSpec, Floats, Parameters, int, int], Run]
    settings: Callable[[Parameters], Parameters]

    @property
    def label(self) -> str:
        return f"{self.name} (told: {self.told})" if self.told else self.name


def _safe_psrl(spec: CmdpSpec, transitions: Floats, parameters: Parameters, seed: int, _episodes: int) -> Run:
    learner = SafePsrl(spec, options_from_document(parameters), seed)
    return SimulatedRun(learner, transitions, environment_seed=seed)


def _safe_psrl_settings(parameters: Parameters) -> Parameters:
    return options_to_document(options_from_document(parameters))


def _adaptive(spec: CmdpSpec, transitions: Floats, parameters: Parameters, seed: int, episodes: int) -> Run:
    return _safe_psrl(spec, transitions, {"method": ADAPTIVE, **parameters}, seed, episodes)


def _adaptive_settings(parameters: Parameters) -> Parameters:
    return _safe_psrl_settings({"method": ADAPTIVE, **parameters})


def _primaldual(spec: CmdpSpec, transitions: Floats, parameters: Parameters, seed: int, episodes: int) -> Run:
    coefficient = _primaldual_settings(parameters)["pessimism_coefficient"]
    return OptPessPrimalDualRun(spec, transitions, seed, episodes, coefficient)


def _primaldual_settings(parameters: Parameters) -> Parameters:
    for name, value in parameters.items():
        if name != "pessimism_coefficient":
            raise SpecError(name, value, "is not a parameter of optpess-primaldual, which has pessimism_coefficient")
    return {"pessimism_coefficient": DEFAULT_COEFFICIENT, **parameters}


def _none(parameters: Parameters) -> Parameters:
    for name, value in parameters.items():
        raise SpecError(name, value, "is not a parameter of this algorithm, which has none")
    return {}


def _plain(name: str, summary: str, told: str, make: Callable[[CmdpSpec, Floats, int, int], Run]) -> Algorithm:
    """An algorithm without parameters."""

    def start(spec: CmdpSpec, transitions: Floats, parameters: Parameters, seed: int, episodes: int) -> Run:
        _none(parameters)
        return make(spec, transitions, seed, episodes)

    return Algorithm(name, summary, told, start, _none)


ALGORITHMS: Final = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "safe-psrl",
            "the paper's: posterior sampling with a pessimistic dual variable (published setting)",
            "",
            _safe_psrl,
            _safe_psrl_settings,
        ),
        Algorithm(
            "safe-psrl-adaptive",
            "pessimism from the posterior's own uncertainty, exact plans; not covered by the theorem",
            "",
            _adaptive,
            _adaptive_settings,
        ),
        _plain("dope", "Bura et al. 2022: optimistic kernel and reward, pessimistic cost", "support, safe policy", DopeRun),
        _plain("optcmdp", "Efroni et al. 2020: optimistic kernel; the constraint only in the long run", "support", OptCmdpRun),
        _plain(
            "optpess-lp", "Liu et al. 2021: optimistic reward, pessimistic cost, linear program", "safe policy", OptPessLpRun
        ),
        Algorithm(
            "optpess-primaldual",
            "Liu et al. 2021: optimistic signals with a pessimistic dual variable",
            "",
            _primaldual,
            _primaldual_settings,
        ),
        _plain(
            "cmdp-psrl",
            "Agarwal et al. 2022, adapted to episodes: posterior sampling without pessimism",
            "",
            lambda spec, transitions, seed, _: CmdpPsrlRun(spec, transitions, seed),
        ),
        _plain(
            "psrl",
            "Osband et al. 2013: posterior sampling without a constraint",
            "",
            lambda spec, transitions, seed, _: PsrlRun(spec, transitions, seed),
        ),
        _plain(
            "safe-baseline",
            "the optimum at the satisfiable cost, for ever: learns nothing",
            "safe policy",
            lambda spec, transitions, seed, _: SafeBaselineRun(spec, transitions, seed),
        ),
    )
}


def load_kernels() -> None:
    """Compile the kernels of every algorithm, or load them from the cache."""
    warm_up()
    spec = factored_toy()
    transitions = spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True)
    for algorithm in ALGORITHMS.values():
        algorithm.start(spec, transitions, {}, 0, 1).advance(1)


def algorithm_named(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        close = get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpecError("algorithm", name, f"must be one of {', '.join(ALGORITHMS)}, {ALL}{hint}")
    return ALGORITHMS[name]


def algorithms_named(names: str) -> list[str]:
    """`safe-psrl,dope` or `all` as a list without repetitions."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    return list(dict.fromkeys(known for name in listed for known in (ALGORITHMS if name == ALL else [name])))
