# %% [markdown]
# # A tour of Safe PSRL
#
# Run this script as a whole, or step through its cells in an editor that knows `# %%` (VS Code, PyCharm, Spyder, Jupytext).
# It starts a service in this process, connects an environment, lets an agent learn, reads what the agent has
# learned, and compares the result with the exact optimum. It writes two figures to the current directory.
#
# The problem: keep a room warm for 12 hours with at most 4 hours of heating on average. More heating would give more warm
# hours: the budget binds.

# %% Imports
import random
import zlib
from contextlib import ExitStack
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from safe_psrl import CmdpSpec, Constraint, exact_optimum
from safe_psrl_client import Client, RemoteAgent, play, spec_from_document
from safe_psrl_server.embedded import EmbeddedServer

HORIZON, LEVELS, START, WARM = 12, 6, 2, 2  # hours; states from cold (0) to hot (5); the first state; warm from here on
IDLE, HEAT = 0, 1
BUDGET = 4.0  # hours of heating in an episode
EPISODES = 600
write = partial(print, flush=True)


# %% The environment: `reset` returns a state, `step` returns next state, reward, costs, and whether the episode has ended
class Room:
    """Heating warms the room by one level with probability 0.5; without it, the room cools by one with probability 0.5."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.level = START

    def reset(self) -> int:
        self.level = START
        return self.level

    def step(self, action: int) -> tuple[int, float, list[float], bool]:
        reward, cost = float(self.level >= WARM), float(action == HEAT)
        change = (1 if action == HEAT else -1) * (self.random.random() < 0.5)
        self.level = min(max(self.level + change, 0), LEVELS - 1)
        return self.level, reward, [cost], False


# %% What the agent knows: sizes, reward, cost, budget, possible next states. It does not know the probabilities
reward = [[float(level >= WARM)] * 2 for level in range(LEVELS)]
cost = [[0.0, 1.0]] * LEVELS
support = [  # by state, action and next state: idle stays or cools, heating stays or warms
    [[other in {level, min(max(level + change, 0), LEVELS - 1)} for other in range(LEVELS)] for change in (-1, 1)]
    for level in range(LEVELS)
]
document = {
    "num_states": LEVELS,
    "num_actions": 2,
    "horizon": HORIZON,
    "initial_state": START,
    "reward": reward,
    "support": support,
    "constraints": [{"name": "heating", "cost": cost, "cost_budget": BUDGET, "satisfiable_cost": 0.0}],
    "agent": {"seed": 1, "options": {"method": "certified"}},
}

# %% A service in this process. For one that runs elsewhere, use `Client("127.0.0.1:50551")`
running = ExitStack()
server = running.enter_context(EmbeddedServer())
client = running.enter_context(Client(server.target))
client.create_agent("room", spec_from_document(document))

# %% Learning: the client fetches each episode's policy, plays it, and reports the trajectory
results = play(Room(seed=1), RemoteAgent(client, "room", mode="local"), EPISODES)
rewards = np.array([result.reward for result in results])
costs = np.array([result.costs[0] for result in results])
status = client.get_agent("room").status
write(f"{status.transitions:,} transitions learned")
write(f"constraint regret {status.constraints[0].constraint_regret:.1f}: below 0 is unspent budget")

# %% The exact optimum, from the true probabilities, which only this cell uses
kernel = np.zeros((LEVELS, 2, LEVELS))
for level in range(LEVELS):
    for action, change in ((IDLE, -1), (HEAT, 1)):
        kernel[level, action, level] += 0.5
        kernel[level, action, min(max(level + change, 0), LEVELS - 1)] += 0.5
heating = Constraint("heating", cost, cost_budget=BUDGET, satisfiable_cost=0.0)
spec = CmdpSpec(
    num_states=LEVELS,
    num_actions=2,
    horizon=HORIZON,
    initial_state=START,
    reward=reward,
    support=support,
    constraints=[heating],
)
optimum = exact_optimum(spec, kernel)
write(f"best within the budget: {optimum.reward:.2f} warm hours at {optimum.costs[0]:.2f} hours of heating")
late_reward, late_cost = rewards[-200:].mean(), costs[-200:].mean()
write(f"last 200 episodes: {late_reward:.2f} warm hours at {late_cost:.2f} hours of heating, budget {BUDGET:g}")

# %% Plot: reward against the optimum, cost against the budget, constraint regret
figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
window = np.ones(50) / 50
episodes = np.arange(50, EPISODES + 1)
axes[0].plot(episodes, np.convolve(rewards, window, "valid"), label="agent, mean of 50")
axes[0].axhline(optimum.reward, color="black", linestyle="--", label="optimum")
axes[0].set(title="Warm hours", xlabel="episode")
axes[1].plot(episodes, np.convolve(costs, window, "valid"), label="agent, mean of 50")
axes[1].axhline(BUDGET, color="black", linestyle="--", label="budget")
axes[1].set(title="Hours of heating", xlabel="episode")
axes[2].plot(np.cumsum(costs - BUDGET), label="cost less budget, summed")
axes[2].axhline(0.0, color="black", linestyle="--")
axes[2].set(title="Constraint regret", xlabel="episode")
for axis in axes:
    axis.legend()
figure.savefig("tour-learning.png", dpi=120)

# %% The posterior: observed transitions by state, action and next state
packed = client.get_posterior("room").transition_counts
counts = np.frombuffer(zlib.decompress(packed.data), packed.dtype).reshape(packed.shape)[0]
estimate = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
visited = counts.sum(axis=-1) >= 50
error = np.abs(estimate - kernel).max(axis=-1)[visited].max()
write(f"{visited.sum()} of {visited.size} pairs were visited at least 50 times; their largest error is {error:.2f}")

# %% The policy of the latest episode, beside the optimal one; 0.5 where the policy never arrives
policy = client.get_policy("room").policy
drawn = np.array(policy.actions).reshape(HORIZON, LEVELS)
probabilities = np.eye(2)[drawn]
if policy.mixture:  # this policy was drawn from several
    parts = [np.eye(2)[np.array(part.actions).reshape(HORIZON, LEVELS)] for part in policy.mixture]
    probabilities = np.average(parts, axis=0, weights=[part.share for part in policy.mixture])

figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained", sharey=True)
for axis, title, table in ((axes[0], "learned", probabilities), (axes[1], "optimal", optimum.policy)):
    image = axis.imshow(table[:, :, HEAT].T, origin="lower", aspect="auto", vmin=0.0, vmax=1.0)
    axis.set(title=f"Probability of heating, {title}", xlabel="hour", ylabel="level")
figure.colorbar(image, ax=axes)
figure.savefig("tour-policy.png", dpi=120)


# %% What the learned policy is worth under the true probabilities
def expected(signal: NDArray[np.float64], table: NDArray[np.float64]) -> float:
    """The expected sum of `signal` [S, A] over an episode under the policy `table` [H, S, A]."""
    value = np.zeros(LEVELS)
    for hour in reversed(range(HORIZON)):
        value = (table[hour] * (signal + kernel @ value)).sum(axis=-1)
    return float(value[START])


learned_reward, learned_cost = expected(np.array(reward), probabilities), expected(np.array(cost), probabilities)
write(f"learned policy: {learned_reward:.2f} warm hours at {learned_cost:.2f} hours of heating")
write(f"that is {learned_reward / optimum.reward:.0%} of the optimum")

# %% Close the client, then the service
running.close()
