"""The product's own environments in Gymnasium's registry. Importing this module registers them.

import safe_psrl_testbed.gym_environments
env = gymnasium.make("safe_psrl/StreamingBuffer-v0")
"""

from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_testbed.environment import TabularEnvironment
from safe_psrl_testbed.scenario import scenario_named

IDS: Final = {
    "safe_psrl/StreamingBuffer-v0": "streaming-buffer",
    "safe_psrl/Inventory-v0": "inventory",
    "safe_psrl/FactoredToy-v0": "factored-toy",
}


class CmdpEnv(gymnasium.Env[np.int64, np.int64]):
    """A scenario by its name. `info` has the first cost as `cost`, all of them as `costs`, and the next state's `action_mask`.

    Gymnasium's agents may choose any action of the space: an unavailable one is replaced by the next lower available one.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, scenario: str, *, noisy: bool = False) -> None:
        found = scenario_named(scenario)
        self.world = TabularEnvironment(found.spec, found.transitions_for(0), noisy=noisy)
        self.observation_space = spaces.Discrete(self.problem.num_states)
        self.action_space = spaces.Discrete(self.problem.num_actions)
        self._state = 0
        self._seeded = False

    @property
    def problem(self) -> CmdpSpec:
        """What an agent knows; `world.transitions` is hidden from it."""
        return self.world.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.int64, dict[str, Any]]:
        """With a seed, the first episode of that seed, as in `TabularEnvironment`."""
        super().reset(seed=seed, options=options)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**31))
        self._seeded = True
        self._state = self.world.reset(seed)
        return np.int64(self._state), {"action_mask": self._mask()}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        available = np.flatnonzero(self._mask()[: int(action) + 1])
        outcome = self.world.step(int(available[-1]) if len(available) else int(np.argmax(self._mask())))
        self._state = outcome.next_state
        info = {"cost": outcome.costs[0], "costs": outcome.costs, "action_mask": self._mask()}
        return np.int64(self._state), outcome.reward, False, outcome.done, info

    def _mask(self) -> NDArray[np.int8]:
        mask: NDArray[np.int8] = self.problem.available_actions[self._state].astype(np.int8)
        return mask


for _id, _scenario in IDS.items():
    gymnasium.register(
        _id,
        entry_point="safe_psrl_testbed.gym_environments:CmdpEnv",
        kwargs={"scenario": _scenario},
        max_episode_steps=scenario_named(_scenario).spec.horizon,
    )
