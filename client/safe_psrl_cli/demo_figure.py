"""The demo's figure."""

from pathlib import Path

from matplotlib.figure import Figure

from safe_psrl_cli.demo_history import RECENT, History
from safe_psrl_experiments.figures import moving_mean


def draw(path: Path, history: History, optimum_reward: float) -> Path:
    """Cost against its budget, reward, and the safety margin, with the crash marked."""
    figure = Figure(figsize=(8, 8), layout="constrained")
    cost, reward, margin = figure.subplots(3, 1, sharex=True)
    cost.plot(*moving_mean(history.costs, RECENT), color="#0072B2", label=f"cost, mean of {RECENT:,} episodes")
    cost.axhline(history.budget, color="#D55E00", linestyle="--", label="budget")
    cost.set(ylabel="cost of an episode", ylim=(0, None), title="Streaming buffer, learned through the service")
    reward.plot(*moving_mean(history.rewards, RECENT), color="#009E73", label=f"reward, mean of {RECENT:,} episodes")
    reward.axhline(optimum_reward, color="black", linestyle=":", label="exact constrained optimum")
    reward.set(ylabel="reward of an episode", ylim=(0, None))
    if history.margins:
        margin.plot(*zip(*history.margins, strict=True), color="#CC79A7", label="budget less expected cost, at the confidence")
    margin.set(ylabel="safety margin of the plan", xlabel="episode", ylim=(0, None))
    for axis, place in ((cost, "lower right"), (reward, "lower right"), (margin, "upper right")):
        if history.killed_at:
            axis.axvline(history.killed_at, color="#555555", linewidth=1.2, linestyle="-.", label="server killed, restarted")
        axis.grid(alpha=0.3)
        axis.legend(loc=place, fontsize=8)
    figure.savefig(path, dpi=140)
    return path
