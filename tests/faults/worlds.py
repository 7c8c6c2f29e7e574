"""Small problems that the clients simulate: the service knows everything but the kernel."""

import random

from safe_psrl_client import spec_from_document
from safe_psrl_proto.v1 import control_pb2, model_pb2


class World:
    """A kernel drawn from `seed`. More reward costs more, so that the dual variable has something to do."""

    def __init__(self, seed: int, *, learned: bool) -> None:
        chosen = random.Random(seed)
        self.num_states, self.num_actions, self.horizon = (5, 3, 6) if learned else (4, 2, 8)
        self.learned = learned
        pairs = [[a / (self.num_actions - 1) for a in range(self.num_actions)] for _ in range(self.num_states)]
        self.reward = [[0.2 + 0.7 * price * chosen.random() for price in row] for row in pairs]
        self.costs = [[[price * chosen.uniform(0.5, 1) for price in row] for row in pairs] for _ in range(1 + learned)]
        self.kernel = [[[chosen.random() ** 3 + 0.01 for _ in pairs] for _ in row] for row in pairs]

    def spec(self, seed: int) -> model_pb2.AgentSpec:
        limits = {"cost_budget": 0.25 * self.horizon, "satisfiable_cost": 0.05 * self.horizon}
        document = {
            "num_states": self.num_states,
            "num_actions": self.num_actions,
            "horizon": self.horizon,
            "reward": self.reward,
            "reward_learned": self.learned,
            "constraints": [
                {"name": f"cost-{i}", "cost": cost, "learned": i == 1, **limits} for i, cost in enumerate(self.costs)
            ],
            "agent": {"seed": seed, "options": {"method": "published"}},  # dual variables are state to be lost, too
        }
        return spec_from_document(document)

    def step(self, chosen: random.Random, state: int, action: int) -> control_pb2.Transition:
        (next_state,) = chosen.choices(range(self.num_states), self.kernel[state][action])
        reward, costs = self.reward[state][action], [cost[state][action] for cost in self.costs]
        if self.learned:  # noise of three values, whose sums are exact whatever their order
            reward, costs = chosen.choice([0.0, 0.5, 1.0]), [chosen.choice([0.0, 0.25, 0.5]) for _ in costs]
        return control_pb2.Transition(state=state, action=action, next_state=next_state, reward=reward, costs=costs)
