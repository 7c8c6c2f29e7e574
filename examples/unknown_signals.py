"""Unknown reward and cost: an inventory whose noisy sales and costs the agent only observes.

The environment is `Inventory-v0` from Gymnasium's registry. The agent knows which orders fit into the store and the budget, and
no table. It learns kernel, reward and cost together.
"""

import gymnasium

import safe_psrl_testbed.gym_environments  # registers the environment
from runner import learn, options, show, write
from safe_psrl import exact_optimum
from safe_psrl_testbed.gym_bridge import GymBridge, GymCost


def main() -> None:
    chosen = options("An inventory with unknown reward and cost.", episodes=4000).parse_args()
    env = gymnasium.make("safe_psrl/Inventory-v0", noisy=True)
    shop = env.unwrapped
    assert isinstance(shop, safe_psrl_testbed.gym_environments.CmdpEnv)  # noqa: S101  # for the type checker
    bridge = GymBridge(
        env,
        [GymCost("operation", cost_budget=3.5, satisfiable_cost=0.7)],  # from info["cost"]
        terminates=False,
        seed=chosen.seed,
        initial_state=0,
        available_actions=shop.problem.available_actions,
    )
    optimum = exact_optimum(shop.problem, shop.world.transitions)
    write("Inventory: reward and cost are learned")
    show(bridge, learn(bridge, chosen), optimum.reward)


if __name__ == "__main__":
    main()
