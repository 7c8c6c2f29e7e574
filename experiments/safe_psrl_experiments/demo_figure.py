"""The demonstration as a figure: cost against its budget, reward, and the dual variable, with the crash marked."""

from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from safe_psrl_experiments.figures import moving_mean

WINDOW = 200  # episodes of a moving mean


@dataclass
class Story:
    """What happened, episode by episode."""

    budget: float
    rewards: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    duals: list[tuple[int, float]] = field(default_factory=list)  # (episode, value)
    killed_at: int = 0


def draw_story(path: Path, story: Story, optimum_reward: float) -> Path:
    figure = Figure(figsize=(8, 8), layout="constrained")
    cost, reward, dual = figure.subplots(3, 1, sharex=True)
    cost.plot(*moving_mean(story.costs, WINDOW), color="#0072B2", label=f"cost, mean of {WINDOW} episodes")
    cost.axhline(story.budget, color="#D55E00", linestyle="--", label="budget")
    cost.set(ylabel="cost of an episode", ylim=(0, None), title="Streaming buffer, learned through the service")
    reward.plot(*moving_mean(story.rewards, WINDOW), color="#009E73", label=f"reward, mean of {WINDOW} episodes")
    reward.axhline(optimum_reward, color="black", linestyle=":", label="exact constrained optimum")
    reward.set(ylabel="reward of an episode", ylim=(0, None))
    if story.duals:
        dual.plot(*zip(*story.duals, strict=True), color="#CC79A7", label="dual variable")
    dual.set(ylabel="dual variable", xlabel="episode")
    for axis in (cost, reward, dual):
        if story.killed_at:
            axis.axvline(story.killed_at, color="#555555", linewidth=1.2, linestyle="-.", label="server killed, restarted")
        axis.grid(alpha=0.3)
        axis.legend(loc="best", fontsize=8)
    figure.savefig(path, dpi=140)
    return path
