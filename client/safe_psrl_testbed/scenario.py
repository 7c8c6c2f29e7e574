"""Environments by name: a preset, `random:…`, or a specification file; `prior:…` draws the kernels of any of them.

A preset's name may be followed by parameters of its kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl.errors import InfeasibleError, SpecError
from safe_psrl.planning.optimum import checked_kernel, exact_optimum
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import SCENARIO, stream_of
from safe_psrl.problem.documents import options_from_document, parse_document, scalar_of, spec_from_document
from safe_psrl.problem.options import CERTIFIED
from safe_psrl.problem.presets import PRESETS, preset
from safe_psrl.problem.spec import CONTINUING, CmdpSpec
from safe_psrl_client.documents import spec_from_document as agent_from_document
from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_testbed.environment import TabularEnvironment
from safe_psrl_testbed.kernels import KERNELS
from safe_psrl_testbed.random_cmdp import random_cmdp

MAX_DRAWS: Final = 1000
PRIOR: Final = "prior:"
RANDOM_SIZES: Final = {"states": 10, "actions": 3, "horizon": 10, "seed": 0, "constraints": 1}


@dataclass(frozen=True, eq=False)
class Scenario:
    """A problem with its true kernel, which is fixed or, as in the Bayesian regret, drawn from the prior for each seed."""

    name: str
    spec: CmdpSpec
    transitions: NDArray[np.float64] | None  # None: drawn from the prior

    def transitions_for(self, seed: int) -> NDArray[np.float64]:
        """[1|H, S, A, W]: the kernel of `seed`; one that assumption 1 allows."""
        if self.transitions is not None:
            return checked_kernel(self.spec, self.transitions)
        stream = stream_of(seed, 0, SCENARIO)
        p = np.zeros(self.spec.dirichlet_prior.shape)
        for _ in range(MAX_DRAWS):
            draw_kernel(stream, self.spec.dirichlet_prior, np.zeros(p.shape), p)
            try:
                exact_optimum(self.spec, p, self.spec.satisfiable_costs)
            except InfeasibleError:
                continue
            return checked_kernel(self.spec, p)
        raise SpecError(
            "satisfiable_cost",
            self.spec.satisfiable_costs,
            f"was reached on none of {MAX_DRAWS} kernels drawn from the prior; raise it, or give `transitions`",
        )

    def environment(self, seed: int = 0) -> TabularEnvironment:
        return TabularEnvironment(self.spec, self.transitions_for(seed), seed=seed)


def scenario_named(text: str) -> Scenario:
    """`streaming-buffer`, `inventory`, `factored-toy`, `random:states=10,actions=3,…`, or a path to a .toml or .json file.

    A preset's kernel may have other parameters: `streaming-buffer:departure=0.9,fast=0.5`. With `prior:` before any of these,
    the kernel is drawn from the problem's prior for each seed.
    """
    if text.startswith(PRIOR):
        return replace(scenario_named(text.removeprefix(PRIOR)), name=text, transitions=None)
    name = text.partition(":")[0]
    if name in KERNELS:
        return Scenario(text, preset(name), KERNELS[name](**kernel_parameters(text)))
    if name == "random":
        return _random(text)
    path = Path(text)
    if path.suffix in {".toml", ".json"}:
        return _from_file(path)
    choices = ", ".join([*PRESETS, "random:states=S,actions=A,horizon=H,seed=N"])
    raise SpecError("environment", text, f"must be one of {choices}, or a .toml or .json file")


def kernel_parameters(text: str) -> dict[str, float]:
    """The parameters of the kernel of a preset, by name: those of `text`, and the defaults of the others."""
    kernel = KERNELS[text.partition(":")[0]]
    defaults = {name: parameter.default for name, parameter in signature(kernel).parameters.items()}
    return _parameters(text, defaults, lambda _, value: isinstance(value, int | float) and 0 <= value <= 1, "PROBABILITY")


def _parameters(text: str, defaults: dict[str, Any], is_valid: Callable[[str, object], bool], unit: str) -> dict[str, Any]:
    """Those that `text` has after its name, as in `NAME:key=value,…`, and the defaults of the others."""
    name, _, given = text.partition(":")
    found = dict(defaults)
    for part in filter(None, given.split(",")):
        key, _, value = part.partition("=")
        number = scalar_of(value)
        if key not in found or isinstance(number, bool) or not is_valid(key, number):
            known = f"write {name}:" + ",".join(f"{key}={unit}" for key in found) if found else f"{name} has no parameters"
            raise SpecError("environment", text, f"has the part {part!r}; {known}")
        found[key] = number
    return found


def _random(text: str) -> Scenario:
    sizes = _parameters(text, RANDOM_SIZES, _is_size, "N")
    spec, p = random_cmdp(sizes["states"], sizes["actions"], sizes["horizon"], sizes["seed"], sizes["constraints"])
    return Scenario(text, spec, p)


def _is_size(key: str, value: object) -> bool:
    return (isinstance(value, int) and value >= (key != "seed")) or (key == "horizon" and value == CONTINUING)


def _from_file(path: Path) -> Scenario:
    """A specification, with its kernel under `transitions` if the file has one. A table `agent` is checked and ignored."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError("file", path.name, f"cannot be read in {path.parent.absolute()}: {reason}") from None
    document = parse_document(text, path.suffix[1:])
    transitions = document.pop("transitions", None)
    if "agent" in document:
        _check_agent(document)
        del document["agent"]
    spec = spec_from_document(document)
    return Scenario(path.stem, spec, None if transitions is None else checked_kernel(spec, transitions))


def _check_agent(document: dict[str, Any]) -> None:
    """Check the table `agent`: its shape as the client does, its options as the algorithm does."""
    try:
        agent_from_document(document)
    except InvalidDocumentError as error:
        raise SpecError("agent", document["agent"], str(error)) from None
    options_from_document({"method": CERTIFIED, **document["agent"].get("options", {})})
