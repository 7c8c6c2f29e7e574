"""The figures of `safe-psrl simulate lte-cell` and `base-stations`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from safe_psrl_experiments.figures import moving_mean, save_figure
from safe_psrl_testbed.base_stations.simulation import BaseStationsSimulation
from safe_psrl_testbed.base_stations.world import CLASSES, BaseStations
from safe_psrl_testbed.lte.simulation import LteSimulation
from safe_psrl_testbed.media import FAST, LEARNED, SHADOW, MediaHistory

LTE_WINDOW: Final = 40  # episodes of a moving mean
STATIONS_WINDOW: Final = 5
SHOWN_EPOCHS: Final = 60  # of the buffers' traces, at the end of the run
CLASS_COLOURS: Final = ("#009E73", "#0072B2", "#E69F00")
LOOKS: Final[dict[str, tuple[str, Any]]] = {
    LEARNED: ("#0072B2", "-"),
    SHADOW: ("#E69F00", "-"),
    "always-slow": ("#999999", ":"),
    "always-fast": ("#D55E00", "--"),
    "fast-below-half": ("#CC79A7", "-."),
    "fast-at-first": ("#009E73", (0, (5, 1))),
}


def draw_media(path: Path, simulation: LteSimulation | BaseStationsSimulation, summary: dict[str, Any]) -> Path:
    """Stalls and cost against the budget, constraint regrets, and what is particular to the simulation."""
    figure = Figure(figsize=(12, 10 if isinstance(simulation, LteSimulation) else 9), layout="constrained")
    played = {name: history for name, history in simulation.histories.items() if history.episodes}
    if isinstance(simulation, LteSimulation):
        played |= {SHADOW: simulation.watched} if simulation.watched.episodes else {}
        caption = _draw_lte_cell(figure, played, summary)
    else:
        caption = _draw_base_stations(figure, simulation, played, summary)
    figure.supxlabel(caption, fontsize=8.5, color="#444444")
    return save_figure(path, figure, caption)


def _draw_lte_cell(figure: Figure, played: Mapping[str, MediaHistory], summary: dict[str, Any]) -> str:
    """Draw the panels and the legend; returns the caption."""
    axes = figure.subplots(3, 2)
    _stalls_and_costs(axes[0, 0], axes[0, 1], played, summary, LTE_WINDOW)
    _regret(axes[1, 0], played[LEARNED].constraint_regret, _promoted(played), summary)
    _kernel(axes[1, 1], summary["kernel"])
    _buffers(axes[2, 0], played, LEARNED, summary["unit"])
    beside = SHADOW if SHADOW in played else "always-slow"
    _buffers(axes[2, 1], played, summary["best_fixed_within_budget"] or beside, summary["unit"])
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=6, fontsize=9)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return (
        f"LTE cell in ns-3: {summary['ues']} UEs, {len(summary['agents'])} agent(s), method {summary['method']}, "
        f"seed {summary['seed']}, {summary['episodes']:,} {summary['unit']}s of 10 epochs of {summary['epoch_ms']} ms. "
        f"{_shadow_caption(summary)}Stalls and cost: mean over UEs and {LTE_WINDOW} {summary['unit']}s."
    )


def _draw_base_stations(
    figure: Figure, simulation: BaseStationsSimulation, played: Mapping[str, MediaHistory], summary: dict[str, Any]
) -> str:
    """Draw the panels and the legend; returns the caption."""
    axes = figure.subplots(2, 2)
    _map(axes[0, 0], simulation.world)
    _stalls_and_costs(axes[0, 1], axes[1, 0], played, summary, STATIONS_WINDOW)
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
    return (
        f"{summary['cells']} cells, {summary['devices']} devices, an agent a {summary['agents_per']}, "
        f"method {summary['method']}, seed {summary['seed']}, {summary['episodes']:,} episodes a device. "
        f"Curves: mean over {STATIONS_WINDOW} episodes."
    )


def _shadow_caption(summary: dict[str, Any]) -> str:
    """Of the dashed line."""
    if "shadow" not in summary:
        return ""
    phase = summary["shadow"]
    return f"In shadow for {phase['episodes']:,} {summary['unit']}s, where {phase['rule']} acts, then promoted.\n"


def _promoted(played: Mapping[str, MediaHistory]) -> int:
    """The episodes in shadow, before the first that is learned live."""
    return played[SHADOW].episodes if SHADOW in played else 0


def _stalls_and_costs(
    stalls: Axes, costs: Axes, played: Mapping[str, MediaHistory], summary: dict[str, Any], window: int
) -> None:
    """Both panels, with a curve for each policy: means over UEs and the last `window` episodes."""
    for name, history in played.items():
        colour, style = LOOKS[name]
        for axis, values in ((stalls, history.stalls), (costs, history.costs)):
            episodes, means = moving_mean(values.mean(axis=1), window)
            begin = _promoted(played) if name == LEARNED else 0
            axis.plot(begin + episodes, means, color=colour, linestyle=style, linewidth=2, label=name)
            if begin:
                axis.axvline(begin, color="#777777", linewidth=1, linestyle="--")
    costs.axhline(summary["cost_budget"], color="black", linewidth=1.2, label="budget")
    unit = summary["unit"]
    stalls.set(title="Stalls", ylabel="stalled epochs of 10", ylim=(0, 10.3), xlabel=unit)
    costs.set(title="Cost against the budget", ylabel="fast epochs of 10", ylim=(-0.3, 10.3), xlabel=unit)


def _regret(axis: Axes, regret: NDArray[np.float64], begin: int, summary: dict[str, Any]) -> None:
    """Of each UE, and of an agent that they share; after `begin` episodes in shadow, which do not count."""
    episodes = begin + np.arange(1, len(regret) + 1)
    for ue in range(regret.shape[1]):
        axis.plot(episodes, regret[:, ue], color="#0072B2", alpha=0.6, linewidth=1.3)
        axis.annotate(f"UE {ue + 1}", (episodes[-1], regret[-1, ue]), fontsize=8, xytext=(3, -3), textcoords="offset points")
    if len(summary["agents"]) < regret.shape[1]:
        total = regret.sum(axis=1)
        axis.plot(episodes, total, color="black", linewidth=2)
        axis.annotate("agent", (episodes[-1], total[-1]), fontsize=8, xytext=(3, -3), textcoords="offset points")
    axis.axhline(0, color="black", linewidth=0.8)
    axis.axhline(summary["horizon"], color="#D55E00", linestyle="--", linewidth=1.2)
    axis.annotate(
        "one horizon above the budget",
        (begin + 1, summary["horizon"]),
        fontsize=8,
        color="#D55E00",
        xytext=(0, 3),
        textcoords="offset points",
    )
    axis.margins(x=0.08, y=0.15)
    axis.set(title="Learned: constraint regret", ylabel="cost above the budget, summed", xlabel=summary["unit"])


def _kernel(axis: Axes, rows: list[dict[str, Any]]) -> None:
    moves = list(rows[0]["cell"])
    shades = ("#D55E00", "#BBBBBB", "#56B4E9", "#0072B2")
    labels: list[str] = []
    for i, row in enumerate(rows):
        for j, side in enumerate(("paper", "cell")):
            left, y = 0.0, 2.4 * i + j
            labels.append(f"{row['service']}, {row['buffer']}: {side}")
            for move, colour in zip(moves, shades, strict=True):
                share = row[side][move]
                axis.barh(y, share, left=left, color=colour, height=0.85, label=move if i == j == 0 else None)
                if share >= 0.05:
                    axis.text(left + share / 2, y, f"{share:.2f}", ha="center", va="center", fontsize=8)
                left += share
    axis.set_yticks([2.4 * i + j for i in range(len(rows)) for j in (0, 1)], labels, fontsize=8)
    axis.set(title="How the buffer moves in an epoch", xlabel="probability", xlim=(0, 1))
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, -0.42), ncols=4, fontsize=8, frameon=False)


def _buffers(axis: Axes, played: Mapping[str, MediaHistory], name: str, unit: str) -> None:
    """The last episodes of the first UE, with its stalls and its fast epochs."""
    if name not in played:
        axis.set_visible(False)
        return
    states = played[name].states[:, :-1, 0].reshape(-1)[-SHOWN_EPOCHS:]
    fast = (played[name].actions[:, :, 0].reshape(-1) == FAST)[-SHOWN_EPOCHS:]
    epochs = np.arange(len(states))
    colour, _ = LOOKS[name]
    axis.fill_between(epochs, 0, states, step="post", color=colour, alpha=0.25, linewidth=0)
    axis.step(epochs, states, where="post", color=colour, linewidth=1.5, label="buffer")
    axis.plot(epochs[states == 0], np.full((states == 0).sum(), -0.35), "|", color="#D55E00", markersize=7, label="stalled")
    axis.plot(epochs[fast], np.full(fast.sum(), -0.8), "|", color="black", markersize=7, label="fast service")
    for start in range(0, len(states), 10):
        axis.axvline(start, color="#777777", linewidth=0.6, linestyle=":")
    stop = max(5, int(states.max(initial=0)) + 1)
    axis.set(title=f"Buffer of UE 1, last {unit}s: {name}", xlabel="epoch", ylabel="media units", ylim=(-1.2, stop))
    axis.legend(loc="upper right", ncols=3, fontsize=8)


def _map(axis: Axes, world: BaseStations) -> None:
    """Where the devices are at the end, and which cell serves them."""
    links = np.stack([world.positions, world.stations[world.cells]], axis=1)
    axis.add_collection(LineCollection(list(links), colors="#BBBBBB", linewidths=0.5, zorder=1))
    for i, (name, colour) in enumerate(zip(CLASSES, CLASS_COLOURS, strict=True)):
        mine = world.positions[world.classes == i]
        axis.plot(mine[:, 0], mine[:, 1], "o", color=colour, markersize=3, label=name)
    axis.plot(world.stations[:, 0], world.stations[:, 1], "^", color="black", markersize=8, label="base station")
    axis.set(title="Devices and the cells that serve them, at the end", xlabel="metres", ylabel="metres")
    axis.set_aspect("equal")
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
