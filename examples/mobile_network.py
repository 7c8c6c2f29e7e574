"""mobile-env: three base stations, five moving devices, and at most 2 connections per step on average.

More connections serve more devices and cost more. The wrapper turns the environment's 1,024 joint actions into three, and the
quantiser its 35 numbers into 30 states: the number of connections, by the mean utility. The kernel
is unknown, so the learned policy is compared with fixed rules in the same network.
"""

from collections.abc import Callable
from typing import Any, Final

import gymnasium
import mobile_env  # noqa: F401  # registers its environments
import numpy as np
from numpy.typing import NDArray

from runner import follow, learn, line, options, show, write
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost, Seen
from safe_psrl_testbed.quantiser import Quantiser

DEVICES: Final = 5
STATIONS: Final = 3
HORIZON: Final = 20
LEAVE, CONNECT, DROP = range(3)
BUDGET: Final = 2 * HORIZON / DEVICES  # a step with all devices connected costs 1


class OneAtATime(gymnasium.ActionWrapper[Any, Any, Any]):
    """Leave all as it is, connect the device without a connection that has the best signal, or drop the one with the worst."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(3)

    def action(self, action: Any) -> NDArray[np.int64]:
        network: Any = self.unwrapped
        joint = np.zeros(DEVICES, np.int64)  # of each device: 0 nothing, or the station to connect to or to leave
        held = {device: station for station, devices in network.connections.items() for device in devices}
        if action == CONNECT:
            near = [
                (network.channel.snr(station, device), device.ue_id, station.bs_id)
                for device in network.active
                if device not in held
                for station in network.available_connections(device)
            ]
            if near:
                _, device_id, station_id = max(near)
                joint[device_id] = station_id + 1
        elif action == DROP and held:
            worst = min(held, key=lambda device: (network.channel.snr(held[device], device), device.ue_id))
            joint[worst.ue_id] = held[worst].bs_id + 1
        return joint


def connections(observation: Any) -> int:
    """From the environment's own numbers; of each device first a 1 for each station that it is connected to."""
    return int(np.reshape(observation, (DEVICES, -1))[:, :STATIONS].sum())


def features(observation: Any) -> tuple[float, float]:
    return float(connections(observation)), float(np.reshape(observation, (DEVICES, -1))[:, -1].mean())


def share_connected(seen: Seen) -> float:
    return connections(seen.observation) / DEVICES


def main() -> None:
    chosen = options("mobile-env with a limit on connections.", episodes=300).parse_args()
    env = gymnasium.make("mobile-small-central-v0", config={"seed": chosen.seed, "EP_MAX_TIME": HORIZON})
    quantiser = Quantiser([np.arange(DEVICES + 2), np.linspace(-1, 1, 6)], features=features)
    count = np.arange(quantiser.num_states) // quantiser.bins[1]
    bridge = GymBridge(
        OneAtATime(env),
        [
            GymCost(
                "connections",
                cost_budget=BUDGET,
                satisfiable_cost=BUDGET / 2,
                of=share_connected,
                known=np.repeat(count[:, None] / DEVICES, 3, axis=1),
            )
        ],
        horizon=HORIZON,
        quantiser=quantiser,
        reward_range=(-1.0, 1.0),
        terminates=False,
        initial_state=0,
    )
    write(f"mobile-env: reward is the mean utility, from 0 to {HORIZON}; cost 1 is a step with all devices connected")
    show(bridge, learn(bridge, chosen))
    write("")
    line(["fixed rule", "reward", "connections", "budget"])
    line(["---", "---:", "---:", "---:"])
    rules: dict[str, Callable[[int], int]] = {
        "connect all": lambda _: CONNECT,
        "connect two": lambda state: CONNECT if count[state] < 2 else LEAVE,
        "connect none": lambda _: LEAVE,
    }
    for name, rule in rules.items():
        results = follow(bridge, rule, max(5, chosen.episodes // 10))
        reward, cost = np.mean([(result.reward, result.costs[0]) for result in results], axis=0)
        line([name, f"{reward:.3f}", f"{cost:.3f}", f"{BUDGET:g}"])


if __name__ == "__main__":
    main()
