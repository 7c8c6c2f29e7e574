"""What a soak looked like: one panel a quantity, both servers, a mark for every kill."""

from pathlib import Path
from typing import Final

import matplotlib as mpl

from tests.soak.soak import QUANTITIES, Plan, Side

mpl.use("Agg")

import matplotlib.pyplot as plt

COLOURS: Final = {"steady": "#1f77b4", "killed": "#bbbbbb"}
TITLES: Final = {
    "memory": "resident memory, MB",
    "descriptors": "open files",
    "threads": "threads",
    "p50": "median latency of a step, ms",
    "p99": "99th percentile, ms",
    "database": "database, MB",
    "log": "write-ahead log, MB",
    "machine": "a fixed piece of work on this machine, ms",
}


def draw(sides: list[Side], plan: Plan, path: Path) -> None:
    figure, axes = plt.subplots(5, 2, figsize=(11, 12), sharex=True, layout="constrained")
    panels = axes.ravel()
    slopes = sides[0].slopes(plan.warm_up)
    for panel, quantity in zip(panels, QUANTITIES, strict=False):
        for side in reversed(sides):
            for number, (seconds, values) in enumerate(side.sampler.lives(quantity, 0.0)):
                label = f"{side.name} server" if number == 0 else None
                panel.plot(seconds / 60, values, color=COLOURS[side.name], lw=0.8, label=label)
        for kill in sides[1].sampler.kills:
            panel.axvline(kill / 60, color="#d62728", lw=0.5, alpha=0.5)
        found = slopes[quantity]
        panel.set_title(
            f"{TITLES[quantity]}: {found.per_hour:+.3g} an hour [{found.low:+.2g}, {found.high:+.2g}]", fontsize=9, loc="left"
        )
        if quantity in {"p50", "p99", "machine"}:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.axvspan(0, plan.warm_up / 60, color="#f4f0e0", zorder=0)
    last = panels[len(QUANTITIES)]
    for side in reversed(sides):
        last.plot(
            [sample.seconds / 60 for sample in side.sampler.samples],
            [sample.calls for sample in side.sampler.samples],
            color=COLOURS[side.name],
            lw=0.5,
        )
    last.set_title("timed calls a second", fontsize=9, loc="left")
    last.set_ylim(bottom=0)
    panels[-1].set_axis_off()
    for panel in axes[-1]:
        panel.set_xlabel("minutes")
    handles, labels = panels[0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], color="#d62728", lw=0.8))
    figure.legend(handles, [*labels, "kill -9"], loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
