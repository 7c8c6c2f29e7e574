"""Gymnasium's CliffWalking: reach the goal as often as possible, and fall off the cliff in at most 20 of 100 episodes.

The agent knows neither where a move leads nor the reward. It knows that most moves cost nothing; the cost of those that may
lead over the edge is unknown. With `--unknown-everywhere` it knows no cost at all.
"""

from typing import Any

import gymnasium

from runner import learn, options, show, show_hundreds, write
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost

BUDGET = 0.2  # falls an episode
HORIZON = 50
START, FALL = 36, -100
RIGHT, DOWN = 1, 2
EDGE = {(START, RIGHT), *((square, DOWN) for square in range(25, 35))}


class Falls(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The reward is 1 at the goal, and a fall is a cost in `info`."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        square, reward, terminated, truncated, info = self.env.step(action)
        return square, float(terminated), terminated, truncated, {**info, "cost": float(reward == FALL)}


def main() -> None:
    parser = options("CliffWalking with a limit on falls.", episodes=3000)
    parser.add_argument("--unknown-everywhere", action="store_true", help="no cost is known, instead of all but the edge's")
    chosen = parser.parse_args()
    known = None if chosen.unknown_everywhere else lambda square, action: None if (square, action) in EDGE else 0.0
    bridge = GymBridge(
        Falls(gymnasium.make("CliffWalking-v1")),
        [GymCost("falls", BUDGET, satisfiable_cost=0.0, known=known)],
        horizon=HORIZON,
        seed=chosen.seed,
        initial_state=START,
    )
    write("CliffWalking: reward is the share of episodes that reached the goal")
    results = learn(bridge, chosen)
    show(bridge, results)
    show_hundreds(bridge, results)


if __name__ == "__main__":
    main()
