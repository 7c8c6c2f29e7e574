"""A cell that begins with what its neighbour has learned, watches a rule, and takes over when the comparison allows it.

Both cells are streaming buffers: a step's service is slow and free, or fast within a budget. The neighbour's packets are
played at another rate, so its counts are a prior with a small weight. The rule in charge is fast in every third step.
"""

import argparse
from contextlib import ExitStack
from functools import partial

from safe_psrl_client import Client, RemoteAgent, play, warm_start_from_exports
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import scenario_named

FAST, SLOW = 0, 1
WEIGHT = 0.05  # of the neighbour's transitions
write = partial(print, flush=True)


def rule(step: int, _state: int) -> int:
    return FAST if step % 3 == 0 else SLOW


def main() -> None:
    parser = argparse.ArgumentParser(description="Warm start, shadow and promotion of a cell.")
    parser.add_argument("--target", help="a service, such as 127.0.0.1:50551; without, one in this process")
    parser.add_argument("--seed", type=int, default=1, help="of agents and environments (%(default)s)")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        target = chosen.target or stack.enter_context(EmbeddedServer()).target
        run(stack.enter_context(Client(target)), chosen.seed)


def run(client: Client, seed: int) -> None:
    neighbour, cell = scenario_named("streaming-buffer:departure=0.7"), scenario_named("streaming-buffer")
    client.create_agent("cell/1", "streaming-buffer", seed=seed)
    play(neighbour.environment(seed), RemoteAgent(client, "cell/1", "local"), 300)
    spec = client.get_agent("cell/1", with_spec=True).spec
    spec.warm_start.CopyFrom(warm_start_from_exports([client.export_agent("cell/1")], spec, WEIGHT, source="cell/1"))
    spec.mode = "shadow"
    client.create_agent("cell/2", spec)

    world, agent = cell.environment(seed + 1), RemoteAgent(client, "cell/2", "local")
    play(world, agent, 300, incumbent=rule)
    found = client.compare_agent("cell/2")
    write(f"the rule:    reward {found.incumbent.reward.mean:.3f}, cost {found.incumbent.costs[0].mean:.3f}")
    certified = f"cost at most {found.certified_costs[0]:.3f} of {found.cost_budgets[0]:g}"
    write(f"the plan:    reward {found.plan.reward.mean:.3f}, {certified}")
    write(f"the verdict: {found.verdict_text}")
    client.promote("cell/2", "it gains, and its plan is certified")
    results = play(world, agent, 300, incumbent=rule)
    reward, cost = (sum(column) / len(results) for column in zip(*[(one.reward, one.costs[0]) for one in results], strict=True))
    write(f"live:        reward {reward:.3f}, cost {cost:.3f}")


if __name__ == "__main__":
    main()
