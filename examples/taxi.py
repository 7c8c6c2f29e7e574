"""Gymnasium's Taxi: deliver the passenger as often as possible, with at most one illegal action in an episode.

The agent knows that moves are legal and that the taxi moves by one square at most. It does not know which moves are blocked,
where picking up and dropping off is legal, what either does, or what is rewarded.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from runner import learn, options, show, show_hundreds, write
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost

BUDGET = 1.0  # illegal actions an episode
HORIZON = 50
ILLEGAL = -10
SHAPE = (5, 5, 5, 4)  # rows, columns, places of the passenger (the last is the taxi), destinations
MOVES = range(4)
ACTIONS = 6  # the moves, pick up, drop off
LONGEST = 6  # list of next states


class Legality(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The reward is 1 for a delivery, and an illegal action is a cost in `info`."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        state, reward, terminated, truncated, info = self.env.step(action)
        return state, float(terminated), terminated, truncated, {**info, "cost": float(reward == ILLEGAL)}


def possible() -> NDArray[np.int64]:
    """[S + 1, 6, 6]: a move changes the taxi's square, the other actions the passenger's place, or they end the episode."""
    ended = int(np.prod(SHAPE))
    listed = np.full((ended + 1, ACTIONS, LONGEST), -1)
    listed[ended, :, 0] = ended
    for state in range(ended):
        row, column, place, destination = (int(part) for part in np.unravel_index(state, SHAPE))
        squares = [(row, column), (row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        moved = [(r, c, place, destination) for r, c in squares if 0 <= r < SHAPE[0] and 0 <= c < SHAPE[1]]
        carried = [(row, column, other, destination) for other in range(SHAPE[2])]
        for action in range(ACTIONS):
            after = sorted(int(np.ravel_multi_index(t, SHAPE)) for t in (moved if action in MOVES else carried))
            if action not in MOVES:
                after.append(ended)
            listed[state, action, : len(after)] = after
    return listed


def main() -> None:
    chosen = options("Taxi with a limit on illegal actions.", episodes=3000).parse_args()
    bridge = GymBridge(
        Legality(gymnasium.make("Taxi-v4")),
        [GymCost("illegal", BUDGET, satisfiable_cost=0.0, known=dict.fromkeys(MOVES, 0.0))],
        horizon=HORIZON,
        seed=chosen.seed,
        next_states=possible(),
    )
    write("Taxi: reward is the share of episodes that delivered the passenger")
    results = learn(bridge, chosen)
    show(bridge, results)
    show_hundreds(bridge, results)


if __name__ == "__main__":
    main()
