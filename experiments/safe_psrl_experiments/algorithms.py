"""The algorithms that an experiment can run, by name."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats
from safe_psrl.continuing import ContinuingPsrl
from safe_psrl.continuing_simulation import ContinuingRun
from safe_psrl.errors import SpecError
from safe_psrl.learner import SafePsrl
from safe_psrl.problem.documents import drift_from_document, options_from_document, options_to_document
from safe_psrl.problem.options import CERTIFIED
from safe_psrl.problem.presets import continuing_buffer, factored_toy
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.simulation import Ledger, SimulatedRun
from safe_psrl.warm_up import warm_up, warm_up_continuing, warm_up_simulation
from safe_psrl_experiments.baselines.continuing import (
    ContinuingCmdpPsrlRun,
    ContinuingPsrlRun,
    ContinuingSafeBaselineRun,
    PsConRlRun,
)
from safe_psrl_experiments.baselines.optimistic import DopeRun, OptCmdpRun
from safe_psrl_experiments.baselines.optpess import DEFAULT_COEFFICIENT, OptPessLpRun, OptPessPrimalDualRun
from safe_psrl_experiments.baselines.playing import SafeBaselineRun
from safe_psrl_experiments.baselines.posterior_sampling import CmdpPsrlRun, PsrlRun
from safe_psrl_experiments.warm_starts import log_options, logged_counts

ALL: Final = "all"
DRIFT: Final = "drift."  # prefix of the parameters that are fields of `DriftOptions`
WARM_START: Final = "warm_start."  # and of those that are fields of `LogOptions`
Parameters = dict[str, Any]


class Run(Protocol):
    """A learner in a simulated world, with its ledger."""

    episode: int  # done so far; in a continuing task, steps
    ledger: Ledger

    @property
    def dual_variables(self) -> Floats: ...

    @property
    def pessimism(self) -> Floats: ...

    @property
    def tables(self) -> dict[str, NDArray[np.generic]]:
        """Every array that an episode changes, by name: with `episode`, all that is needed to continue elsewhere."""
        ...

    def advance(self, episodes: int) -> None: ...

    def move_to(self, transitions: Floats) -> None:
        """Change the true kernel to `transitions` from now on. Raises a SpecError if the algorithm does not support it."""
        ...


def _no_parameters(parameters: Parameters) -> Parameters:
    for name, value in parameters.items():
        raise SpecError(name, value, "is not a parameter of this algorithm, which has none")
    return {}


def _options(parameters: Parameters) -> Parameters:
    """With those about drift and the warm start, if any is given. A parameter of the detector turns it on."""
    parameters, log = _divided(parameters, WARM_START)
    options, drift = _divided(parameters, DRIFT)
    checked = options_to_document(options_from_document(options))
    if log:
        checked |= {WARM_START + field: value for field, value in asdict(log_options(log)).items() if value}
    if not drift:
        return checked
    watched = drift_from_document({"detect": drift.keys() != {"half_life_visits"}, **drift})
    if watched.on_detect == "pause":
        raise SpecError(
            "drift.on_detect", "pause", "needs an operator who resumes the agent; in an experiment use alert or forget"
        )
    return checked | {DRIFT + field: value for field, value in asdict(watched).items() if value is not None}


def _divided(parameters: Parameters, prefix: str) -> tuple[Parameters, Parameters]:
    """The parameters without that prefix, and those with it, the prefix removed."""
    those = {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
    return {name: value for name, value in parameters.items() if not name.startswith(prefix)}, those


def _certified_options(parameters: Parameters) -> Parameters:
    return _options({"method": CERTIFIED, **parameters})


def _coefficient(parameters: Parameters) -> Parameters:
    for name, value in parameters.items():
        if name != "pessimism_coefficient":
            raise SpecError(name, value, "is not a parameter of optpess-primaldual, which has pessimism_coefficient")
    return {"pessimism_coefficient": DEFAULT_COEFFICIENT, **parameters}


def _safe_psrl(spec: CmdpSpec, transitions: Floats, seed: int, _episodes: int, **settings: Any) -> Run:
    settings, log = _divided(settings, WARM_START)
    options, drift = _divided(settings, DRIFT)
    learner = SafePsrl(spec, options_from_document(options), seed, drift=drift_from_document(drift))
    known = logged_counts(spec, transitions, seed, log_options(log)) if log else None
    return SimulatedRun(learner, transitions, environment_seed=seed, known=known)


def _continuing(spec: CmdpSpec, transitions: Floats, seed: int, _steps: int, **settings: Any) -> Run:
    settings, log = _divided(settings, WARM_START)
    if log:
        raise SpecError("warm_start.episodes", log["episodes"], "is for tasks with episodes")
    options, drift = _divided(settings, DRIFT)
    learner = ContinuingPsrl(spec, options_from_document(options), seed, drift=drift_from_document(drift))
    return ContinuingRun(learner, transitions, environment_seed=seed)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that `make` starts for (specification, kernel, seed, episodes to come) and its settings.

    `make_continuing` does so for continuing tasks, where episodes are steps. One of both may be None.

    `settings` fills in the parameters' defaults, and fails for unknown ones. `told` is what the algorithm is given beyond
    the problem and the data.
    """

    name: str
    summary: str
    told: str
    make: Callable[..., Run] | None
    settings: Callable[[Parameters], Parameters] = _no_parameters
    make_continuing: Callable[..., Run] | None = None

    def start(self, spec: CmdpSpec, transitions: Floats, parameters: Parameters, seed: int, episodes: int) -> Run:
        make = self.make_continuing if spec.is_continuing else self.make
        if make is None:
            tasks = "tasks with episodes" if spec.is_continuing else "continuing tasks"
            raise SpecError("algorithm", self.name, f"is defined for {tasks} only")
        return make(spec, transitions, seed, episodes, **self.settings(parameters))

    def is_for(self, *, continuing: bool) -> bool:
        return (self.make_continuing if continuing else self.make) is not None

    @property
    def label(self) -> str:
        return f"{self.name} (told: {self.told})" if self.told else self.name


PAPER: Final = "the paper's: posterior sampling with a pessimistic dual variable (published setting)"
CERTIFIED_PLANS: Final = "every episode within its budget at a stated confidence; not in the paper"
DOPE: Final = "Bura et al. 2022: optimistic kernel and reward, pessimistic cost"
OPTCMDP: Final = "Efroni et al. 2020: optimistic kernel; the constraint only in the long run"
OPTPESS_LP: Final = "Liu et al. 2021: optimistic reward, pessimistic cost, linear program"
OPTPESS_PRIMALDUAL: Final = "Liu et al. 2021: optimistic signals with a pessimistic dual variable"
CMDP_PSRL: Final = "Agarwal et al. 2022, where there are episodes adapted to them: posterior sampling without pessimism"
PSCONRL: Final = "Provodin et al. 2023: the same with rarer samples; continuing tasks only"
PSRL: Final = "Osband et al. 2013: posterior sampling without a constraint"
SAFE_BASELINE: Final = "the optimum at the satisfiable cost in every episode: learns nothing"
ALGORITHMS: Final = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("safe-psrl", PAPER, "", _safe_psrl, _options, _continuing),
        Algorithm("certified", CERTIFIED_PLANS, "", _safe_psrl, _certified_options, _continuing),
        Algorithm("dope", DOPE, "support, safe policy", DopeRun),
        Algorithm("optcmdp", OPTCMDP, "support", OptCmdpRun),
        Algorithm("optpess-lp", OPTPESS_LP, "safe policy", OptPessLpRun),
        Algorithm("optpess-primaldual", OPTPESS_PRIMALDUAL, "", OptPessPrimalDualRun, _coefficient),
        Algorithm("cmdp-psrl", CMDP_PSRL, "", CmdpPsrlRun, make_continuing=ContinuingCmdpPsrlRun),
        Algorithm("psconrl", PSCONRL, "", None, make_continuing=PsConRlRun),
        Algorithm("psrl", PSRL, "", PsrlRun, make_continuing=ContinuingPsrlRun),
        Algorithm("safe-baseline", SAFE_BASELINE, "safe policy", SafeBaselineRun, make_continuing=ContinuingSafeBaselineRun),
    )
}


def load_kernels() -> None:
    """Compile the kernels of every algorithm, or load them from the cache."""
    warm_up()
    warm_up_simulation()
    warm_up_continuing()
    for spec in (factored_toy(), continuing_buffer()):
        transitions = spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True)
        for algorithm in ALGORITHMS.values():
            if algorithm.is_for(continuing=spec.is_continuing):
                algorithm.start(spec, transitions, {}, 0, 1).advance(1)


def algorithm_named(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        close = get_close_matches(name, ALGORITHMS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpecError("algorithm", name, f"must be one of {', '.join(ALGORITHMS)}, {ALL}{hint}")
    return ALGORITHMS[name]


def algorithms_named(names: str, *, continuing: bool = False) -> list[str]:
    """`safe-psrl,dope` or `all` as a list without repetitions; all are those for such tasks."""
    listed = [name.strip() for name in names.split(",") if name.strip()]
    all_names = [name for name, algorithm in ALGORITHMS.items() if algorithm.is_for(continuing=continuing)]
    return list(dict.fromkeys(known for name in listed for known in (all_names if name == ALL else [name])))
