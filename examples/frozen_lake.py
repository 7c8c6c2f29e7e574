"""Gymnasium's FrozenLake: cross the lake as often as possible, and fall through the ice in at most 15 of 100 episodes.

The agent has the map, so it knows reward and cost by square, and which squares are adjacent. It does not know how slippery the
ice is. The optimum within the budget is computed from the lake's true kernel.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from runner import learn, options, show, write
from safe_psrl import exact_optimum
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost

BUDGET = 0.15  # falls an episode
HORIZON = 20


class LastLook(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shows the square where an episode ended, and ends it with the step after, which has its reward or, in `info`, its cost.

    So reward and cost belong to squares, and are known from the map.
    """

    _last: tuple[Any, float] | None = None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._last = None
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._last is not None:
            square, reward = self._last
            return square, reward, True, False, {"cost": float(reward == 0)}
        square, earned, terminated, truncated, _ = self.env.step(action)
        if terminated:
            self._last = square, float(earned)
        return square, 0.0, False, truncated, {"cost": 0.0}


def possible(lake: NDArray[np.bytes_], ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[S + 1, 4, S + 1]: a move leads to a neighbour or nowhere; from where an episode ends, to the state of ended episodes."""
    squares = np.indices(lake.shape).reshape(2, -1)
    near = np.abs(squares[:, :, None] - squares[:, None]).sum(axis=0) <= 1
    support = np.zeros((lake.size + 1, 4, lake.size + 1), np.bool_)
    support[:-1, :, :-1] = (near & ~ends[:, None])[:, None]
    support[:-1, :, -1] = ends[:, None]
    support[-1, :, -1] = True
    return support


def true_kernel(env: gymnasium.Env[Any, Any], support: NDArray[np.bool_], ends: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[S + 1, 4, S + 1]."""
    p = support.astype(np.float64)  # where an episode ends, there is one way
    for square in np.flatnonzero(~ends):
        p[square] = 0
        for action, outcomes in env.unwrapped.P[square].items():  # type: ignore[attr-defined]
            for probability, after, *_ in outcomes:
                p[square, action, after] += probability
    return p


def main() -> None:
    parser = options("FrozenLake with a limit on falls.", episodes=2000)
    parser.add_argument("--success-rate", type=float, default=0.8, help="of a move on the ice (%(default)s; Gymnasium: 1/3)")
    chosen = parser.parse_args()
    env = gymnasium.make("FrozenLake-v1", success_rate=chosen.success_rate)
    lake = env.unwrapped.desc  # type: ignore[attr-defined]
    holes, goal = lake.ravel() == b"H", lake.ravel() == b"G"
    support = possible(lake, holes | goal)
    bridge = GymBridge(
        LastLook(env),
        [GymCost("falls", BUDGET, satisfiable_cost=0.0, known=np.repeat(holes[:, None], 4, axis=1))],
        known_reward=np.repeat(goal[:, None], 4, axis=1),
        horizon=HORIZON,
        seed=chosen.seed,
        initial_state=0,
        support=support,
    )
    optimum = exact_optimum(bridge.spec, true_kernel(env, support, holes | goal))
    write("FrozenLake: reward is the share of episodes that got across")
    show(bridge, learn(bridge, chosen), optimum.reward)


if __name__ == "__main__":
    main()
