"""Two constraints: a radio link that admits packets as often as possible, with limits on energy and on the queue.

The environment is defined here, as your own would be. Its kernel is computed beside it, only for the exact optimum.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runner import learn, options, show, write
from safe_psrl import exact_optimum
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost

ROOM = 4  # packets in the queue
ARRIVES = 0.8  # probability that a packet comes, if it is admitted
SENT = (0.3, 0.8)  # probability that one is sent, by low and by high power
ACTIONS = [(admit, power) for admit in (0, 1) for power in (0, 1)]


class RadioLink(gymnasium.Env[np.int64, np.int64]):
    """State: packets in the queue. Action: admit or not, low or high power."""

    observation_space = spaces.Discrete(ROOM + 1)
    action_space = spaces.Discrete(len(ACTIONS))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._queue = 0
        return np.int64(0), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        admit, power = ACTIONS[action]
        info = {"energy": float(power), "queue": self._queue / ROOM}
        sent = self._queue > 0 and self.np_random.random() < SENT[power]
        came = admit and self.np_random.random() < ARRIVES
        self._queue = min(self._queue - sent + came, ROOM)
        return np.int64(self._queue), float(admit), False, False, info


def true_kernel() -> NDArray[np.float64]:
    """[S, A, S]."""
    p = np.zeros((ROOM + 1, len(ACTIONS), ROOM + 1))
    for queue in range(ROOM + 1):
        for action, (admit, power) in enumerate(ACTIONS):
            p_sent, p_came = SENT[power] * (queue > 0), ARRIVES * admit
            for sent, came in ((0, 0), (0, 1), (1, 0), (1, 1)):
                p_both = (p_sent if sent else 1 - p_sent) * (p_came if came else 1 - p_came)
                p[queue, action, max(0, min(queue - sent + came, ROOM))] += p_both
    return p


def main() -> None:
    chosen = options("A radio link with limits on energy and queue.", episodes=500).parse_args()
    admits, powers = np.array(ACTIONS, np.float64).T
    queues = np.arange(ROOM + 1) / ROOM
    bridge = GymBridge(
        RadioLink(),
        [
            GymCost("energy", cost_budget=4.0, satisfiable_cost=1.0, of="energy", known=np.tile(powers, (ROOM + 1, 1))),
            GymCost("queue", cost_budget=3.0, satisfiable_cost=2.0, of="queue", known=np.repeat(queues[:, None], 4, axis=1)),
        ],
        horizon=10,
        known_reward=np.tile(admits, (ROOM + 1, 1)),
        terminates=False,
        seed=chosen.seed,
    )
    optimum = exact_optimum(bridge.spec, true_kernel())
    write("Radio link: reward is the number of steps that admit packets, of 10")
    show(bridge, learn(bridge, chosen), optimum.reward)


if __name__ == "__main__":
    main()
