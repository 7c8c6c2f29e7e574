"""Nothing is known: a shop whose sales and costs are seen, one noisy day after the other, and not told beforehand.

The environment is the product's own inventory out of Gymnasium's registry. The agent is told which orders fit into the store,
the budget, and no table at all; kernel, reward and cost are learned together.
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
