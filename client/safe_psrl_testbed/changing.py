"""Worlds that change while an agent plays: to another scenario's kernel, or by the random walk of one parameter.

The problem stays: rewards, costs, budgets and everything else that an agent knows are the first scenario's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safe_psrl.errors import SpecError
from safe_psrl.planning.optimum import checked_kernel
from safe_psrl.posterior.streams import SCENARIO, generator_of
from safe_psrl.problem.documents import scalar_of
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_testbed.kernels import KERNELS
from safe_psrl_testbed.scenario import Scenario, kernel_parameters, scenario_named

Kernel = NDArray[np.float64]


@dataclass(frozen=True)
class Walk:
    """After every `period` episodes, `parameter` of the preset goes up or down by `step`; at 0 and at 1 it is reflected."""

    environment: str  # a preset, with parameters if given
    parameter: str
    step: float
    period: int

    def values(self, seed: int, count: int) -> list[float]:
        """The first `count` values after the one that the environment begins with."""
        values, flips = [kernel_parameters(self.environment)[self.parameter]], generator_of(seed, 0, SCENARIO)
        for _ in range(count):
            value = abs(values[-1] + (self.step if flips.random() < 0.5 else -self.step))
            values.append(min(value, 2.0 - value))
        return values[1:]

    def kernels(self, seed: int, count: int) -> list[Kernel]:
        name, known = self.environment.partition(":")[0], kernel_parameters(self.environment)
        return [KERNELS[name](**known | {self.parameter: value}) for value in self.values(seed, count)]


@dataclass(frozen=True, eq=False)
class ChangingScenario:
    """`first`, then each of `then` after so many episodes, or the kernels of a walk."""

    first: Scenario
    then: tuple[tuple[int, Scenario], ...] = ()
    walk: Walk | None = None

    def changes_for(self, seed: int, episodes: int) -> dict[int, Kernel]:
        """The kernels that follow the first one in that many episodes, by the number of episodes before them."""
        spec = self.first.spec
        if self.walk is None:
            return {after: checked_kernel(spec, scenario.transitions_for(seed)) for after, scenario in self.then}
        moments = range(self.walk.period, episodes, self.walk.period)
        kernels = self.walk.kernels(seed, len(moments))
        return {after: checked_kernel(spec, kernel) for after, kernel in zip(moments, kernels, strict=True)}


def changing_scenario(
    environment: str, then: Sequence[str] = (), walk: str | None = None, episodes: int | None = None
) -> ChangingScenario:
    """The scenario `environment`, then those of `ENVIRONMENT@EPISODES`, or with a walk as in `departure=0.05@200`.

    Raises a SpecError for a change that does not come before the last of `episodes`.
    """
    first = scenario_named(environment)
    if walk is not None:
        if then:
            raise SpecError("walk", walk, "cannot be combined with `then`: leave out one of them")
        return ChangingScenario(first, walk=_walk(environment, walk))
    later: list[tuple[int, Scenario]] = []
    for text in then:
        name, _, count = text.rpartition("@")
        after = scalar_of(count)
        if not name or not isinstance(after, int) or isinstance(after, bool) or after < 1:
            raise SpecError("then", text, "write ENVIRONMENT@EPISODES, such as streaming-buffer:departure=0.9@30000")
        if later and after <= later[-1][0]:
            raise SpecError("then", text, f"must come after the change at {later[-1][0]} episodes: sort them")
        if episodes is not None and after >= episodes:
            raise SpecError("then", text, f"must come before the last of {episodes} episodes")
        scenario = scenario_named(name)
        if _sizes(scenario.spec) != _sizes(first.spec):
            sizes = f"{_sizes(scenario.spec)}, not {_sizes(first.spec)} as {first.name}"
            raise SpecError("then", text, f"has the states, actions, horizon and constraints {sizes}; they cannot change")
        if not np.array_equal(scenario.spec.next_states, first.spec.next_states):
            raise SpecError("then", text, f"lists other next states than {first.name}; they cannot change")
        later.append((after, scenario))
    return ChangingScenario(first, tuple(later))


def _sizes(spec: CmdpSpec) -> tuple[int, int, int, int]:
    return spec.num_states, spec.num_actions, spec.horizon, spec.num_constraints


def _walk(environment: str, text: str) -> Walk:
    known = kernel_parameters(environment) if environment.partition(":")[0] in KERNELS else {}
    if not known:
        raise SpecError("walk", text, f"needs an environment with parameters, such as streaming-buffer, not {environment}")
    name, _, rest = text.partition("=")
    step, period = (scalar_of(part) for part in rest.partition("@")[::2])
    is_step = isinstance(step, int | float) and not isinstance(step, bool) and 0 < step <= 1
    is_period = isinstance(period, int) and not isinstance(period, bool) and period >= 1
    if name not in known or not is_step or not is_period:
        raise SpecError("walk", text, f"write PARAMETER=STEP@EPISODES, such as departure=0.05@200; {', '.join(known)} may walk")
    return Walk(environment, name, float(step), int(period))
