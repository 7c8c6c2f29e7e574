"""Base stations as a figure: the map, stalls and cost against the budget, and every agent's constraint regret."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from safe_psrl_experiments.figures import save_figure
from safe_psrl_experiments.lte_figure import stalls_and_costs
from safe_psrl_testbed.base_stations.simulation import BaseStationsSimulation
from safe_psrl_testbed.base_stations.world import CLASSES, BaseStations

COLOURS: Final = ("#009E73", "#0072B2", "#E69F00")
WINDOW: Final = 5  # episodes of a moving mean


def draw_base_stations(path: Path, simulation: BaseStationsSimulation, summary: dict[str, Any]) -> Path:
    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.subplots(2, 2)
    played = {name: history for name, history in simulation.histories.items() if history.episodes}
    _map(axes[0, 0], simulation.world)
    stalls_and_costs(axes[0, 1], axes[1, 0], played, summary["cost_budget"], WINDOW)
    regret = simulation.agents_constraint_regret()
    axes[1, 1].plot(np.arange(1, len(regret) + 1), regret, color="#0072B2", alpha=0.5, linewidth=1)
    axes[1, 1].axhline(0, color="black", linewidth=0.8)
    axes[1, 1].set(
        title=f"Constraint regret of each of {summary['agents']} agents",
        xlabel="episode",
        ylabel="cost above the budget, summed",
    )
    for axis in axes.flat[1:]:
        axis.grid(alpha=0.3)
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=9)
    caption = (
        f"{summary['cells']} cells, {summary['devices']} devices, an agent a {summary['agents_per']}, "
        f"method {summary['method']}, seed {summary['seed']}, {summary['episodes']:,} episodes a device. "
        f"Curves: mean over {WINDOW} episodes."
    )
    figure.supxlabel(caption, fontsize=8.5, color="#444444")
    return save_figure(path, figure, caption)


def _map(axis: Axes, world: BaseStations) -> None:
    """Where the devices are at the end, and which cell serves them."""
    links = np.stack([world.positions, world.stations[world.cells]], axis=1)
    axis.add_collection(LineCollection(list(links), colors="#BBBBBB", linewidths=0.5, zorder=1))
    for i, (name, colour) in enumerate(zip(CLASSES, COLOURS, strict=True)):
        mine = world.positions[world.classes == i]
        axis.plot(mine[:, 0], mine[:, 1], "o", color=colour, markersize=3, label=name)
    axis.plot(world.stations[:, 0], world.stations[:, 1], "^", color="black", markersize=8, label="base station")
    axis.set(title="Devices and the cells that serve them, at the end", xlabel="metres", ylabel="metres")
    axis.set_aspect("equal")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
