"""The algorithms that an experiment can run, by name."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.errors import SpecError
from safe_psrl.learner import SafePsrl
from safe_psrl.problem.documents import drift_from_document, options_from_document, options_to_document
from safe_psrl.problem.options import CERTIFIED
from safe_psrl.problem.presets import factored_toy
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, SimulatedRun
from safe_psrl.warm_up import warm_up, warm_up_simulation
from safe_psrl_experiments.baselines.optimistic import DopeRun, OptCmdpRun
from safe_psrl_experiments.baselines.optpess import DEFAULT_COEFFICIENT, OptPessLpRun, OptPessPrimalDualRun
from safe_psrl_experiments.baselines.playing import SafeBaselineRun
from safe_psrl_experiments.baselines.posterior_sampling import CmdpPsrlRun, PsrlRun

ALL: Final = "all"
DRIFT: Final = "drift."  # how the parameters begin that are fields of `DriftOptions`
Parameters = dict[str, Any]


class Run(Protocol):
    """A learner in a simulated world, with its ledger."""

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

    def move_to(self, transitions: Floats) -> None:
        """Let the world be the kernel `transitions` from now on. Raises a SpecError if the algorithm does not support it."""
        ...


def _no_parameters(parameters: Parameters) -> Parameters:
    for name, value in parameters.items():
        raise SpecError(name, value, "is not a parameter of this algorithm, which has none")
    return {}


def _options(parameters: Parameters) -> Parameters:
    """With those about drift, if any is given. A parameter of the detector turns it on."""
    options, drift = _divided(parameters)
    checked = options_to_document(options_from_document(options))
    if not drift:
        return checked
    watched = drift_from_document({"detect": drift.keys() != {"half_life_visits"}, **drift})
    if watched.on_detect == "pause":
        raise SpecError(
            "drift.on_detect", "pause", "needs an operator who resumes the agent; in an experiment use alert or forget"
        )
    return checked | {DRIFT + field: value for field, value in asdict(watched).items() if value is not None}


def _divided(parameters: Parameters) -> tuple[Parameters, Parameters]:
    """The algorithm's own parameters, and those about drift without their prefix."""
    drift = {name.removeprefix(DRIFT): value for name, value in parameters.items() if name.startswith(DRIFT)}
    return {name: value for name, value in parameters.items() if not name.startswith(DRIFT)}, drift


def _certified_options(parameters: Parameters) -> Parameters:
    return _options({"method": CERTIFIED, **parameters})


def _coefficient(parameters: Parameters) -> Parameters:
    for name, value in parameters.items():
        if name != "pessimism_coefficient":
            raise SpecError(name, value, "is not a parameter of optpess-primaldual, which has pessimism_coefficient")
    return {"pessimism_coefficient": DEFAULT_COEFFICIENT, **parameters}


def _safe_psrl(spec: CmdpSpec, transitions: Floats, seed: int, _episodes: int, **settings: Any) -> Run:
    options, drift = _divided(settings)
    learner = SafePsrl(spec, options_from_document(options), seed, drift=drift_from_document(drift))
    return SimulatedRun(learner, transitions, environment_seed=seed)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that `make` starts for (specification, kernel, seed, episodes to come) and its settings.

    `settings` completes parameters by their defaults, and fails for unknown ones. `told` is what the algorithm is given beyond
    the problem and the data.
    """

    name: str
    summary: str
    told: str
    make: Callable[..., Run]
    settings: Callable[[Parameters], Parameters] = _no_parameters

    def start(self, spec: CmdpSpec, transitions: Floats, parameters: Parameters, seed: int, episodes: int) -> Run:
        return self.make(spec, transitions, seed, episodes, **self.settings(parameters))

    @property
    def label(self) -> str:
        return f"{self.name} (told: {self.told})" if self.told else self.name


PAPER: Final = "the paper's: posterior sampling with a pessimistic dual variable (published setting)"
CERTIFIED_PLANS: Final = "every episode within its budget at a stated confidence; not in the paper"
DOPE: Final = "Bura et al. 2022: optimistic kernel and reward, pessimistic cost"
OPTCMDP: Final = "Efroni et al. 2020: optimistic kernel; the constraint only in the long run"
OPTPESS_LP: Final = "Liu et al. 2021: optimistic reward, pessimistic cost, linear program"
OPTPESS_PRIMALDUAL: Final = "Liu et al. 2021: optimistic signals with a pessimistic dual variable"
CMDP_PSRL: Final = "Agarwal et al. 2022, adapted to episodes: posterior sampling without pessimism"
PSRL: Final = "Osband et al. 2013: posterior sampling without a constraint"
SAFE_BASELINE: Final = "the optimum at the satisfiable cost in every episode: learns nothing"
ALGORITHMS: Final = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("safe-psrl", PAPER, "", _safe_psrl, _options),
        Algorithm("certified", CERTIFIED_PLANS, "", _safe_psrl, _certified_options),
        Algorithm("dope", DOPE, "support, safe policy", DopeRun),
        Algorithm("optcmdp", OPTCMDP, "support", OptCmdpRun),
        Algorithm("optpess-lp", OPTPESS_LP, "safe policy", OptPessLpRun),
        Algorithm("optpess-primaldual", OPTPESS_PRIMALDUAL, "", OptPessPrimalDualRun, _coefficient),
        Algorithm("cmdp-psrl", CMDP_PSRL, "", CmdpPsrlRun),
        Algorithm("psrl", PSRL, "", PsrlRun),
        Algorithm("safe-baseline", SAFE_BASELINE, "safe policy", SafeBaselineRun),
    )
}


def load_kernels() -> None:
    """Compile the kernels of every algorithm, or load them from the cache."""
    warm_up()
    warm_up_simulation()
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
