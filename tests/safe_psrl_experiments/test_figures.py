"""The figures: both panels, every curve, nothing clipped, and files that are images."""

import struct
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

from safe_psrl_experiments.experiment import Experiment, caption_of
from safe_psrl_experiments.figures import COLOURS, FIGURES, STYLES, Curves, draw_figures, regret_figure
from safe_psrl_experiments.results import RunRecord, summary_of
from safe_psrl_experiments.runs import run_job
from safe_psrl_testbed import scenario_named

CAPTION = (
    "streaming-buffer: 10 states, 2 actions, horizon 10; fast-service: budget 5, satisfiable 1; 400,000 episodes, mean and "
    "range of 10 seeds\n" + "; ".join(f"algorithm-{i}: pessimism_coefficient 0.05, cap_pessimism False" for i in range(4))
)


def curves(names: int) -> Curves:
    episodes = np.array([1.0, 10.0, 100.0])
    return {f"algorithm-{i}": (episodes, np.outer([0.9, 1.0, 1.1], episodes) * (i + 1)) for i in range(names)}


@pytest.fixture(params=FIGURES.values())
def figure(request: pytest.FixtureRequest) -> Figure:
    drawn = regret_figure(request.param, {"objective regret": curves(4), "constraint regret": curves(4)}, CAPTION)
    drawn.canvas.draw()
    yield drawn
    plt.close(drawn)


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, whose signature and end are checked."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert b"IEND" in content[-12:]
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_each_curve_is_drawn_with_its_mean_and_its_band(figure: Figure) -> None:
    assert len(figure.axes) == 2
    for axis in figure.axes:
        lines = {line.get_label(): line for line in axis.get_lines() if not str(line.get_label()).startswith("_")}
        assert list(lines) == [f"algorithm-{i}" for i in range(4)]
        assert len(axis.collections) == 4  # bands
        assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)


def test_curves_are_told_apart_by_colour_and_by_style(figure: Figure) -> None:
    lines = figure.axes[0].get_lines()[:4]
    assert len({line.get_color() for line in lines}) == 4
    assert len({line.get_linestyle() for line in lines}) == 4
    assert len(COLOURS) == len(set(COLOURS)) == len(STYLES)


def test_the_axes_say_what_they_show_and_in_which_unit(figure: Figure) -> None:
    objective, constraint = figure.axes
    assert "objective regret" in objective.get_title()
    assert "constraint regret" in constraint.get_title()
    for axis, quantity in ((objective, "reward"), (constraint, "cost")):
        assert axis.get_xlabel() == "episode"
        assert axis.get_ylabel().startswith(quantity)
        assert axis.get_ylabel().endswith("episode)" if "Average" in axis.get_title() else "episodes)")


def test_no_text_is_clipped_or_covers_another(figure: Figure) -> None:
    caption = figure.get_supxlabel()
    assert caption
    bottom = next(text for text in figure.findobj(Text) if text.get_text() == caption)
    texts = [bottom, *(t for axis in figure.axes for t in (axis.title, axis.xaxis.label, axis.yaxis.label))]
    boxes = [text.get_window_extent() for text in texts]
    for box in boxes:
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.y1
    assert all(not boxes[0].overlaps(box) for box in boxes[1:])


def test_average_regret_is_cumulative_regret_over_episodes() -> None:
    for kind, expected in (("Cumulative", [1.0, 10.0, 100.0]), ("Average", [1.0, 1.0, 1.0])):
        drawn = regret_figure(kind, {"objective regret": curves(1), "constraint regret": curves(1)}, "")
        np.testing.assert_allclose(drawn.axes[0].get_lines()[0].get_ydata(), expected)
        plt.close(drawn)


def test_with_several_constraints_the_worst_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, Curves]] = []

    def keep(_kind: str, panels: dict[str, Curves], _caption: str, _unit: str) -> Figure:
        drawn.append(panels)
        return plt.figure()

    monkeypatch.setattr("safe_psrl_experiments.figures.regret_figure", keep)
    signed = [{"constraint_regret.cost-1": 5.0 - k, "constraint_regret.cost-2": -2.0} for k in (1, 10)]
    strong = [{"strong_violation.cost-1": 4.0, "strong_violation.cost-2": 0.5 * k} for k in (1, 10)]
    rows: list[dict[str, float]] = [
        {"episode": k, "objective_regret": 0.0, **of_constraints, **of_violations}
        for k, of_constraints, of_violations in zip((1, 10), signed, strong, strict=True)
    ]
    spec = scenario_named("random:constraints=2").spec
    draw_figures(tmp_path, spec, [RunRecord("safe-psrl", 1, rows, 1.0, 1.0, [1.0, 1.0], True)], "")
    np.testing.assert_array_equal(drawn[0]["constraint regret"]["safe-psrl"][1], [[4.0, -2.0]])
    np.testing.assert_array_equal(drawn[0]["strong violation"]["safe-psrl"][1], [[4.0, 5.0]])


def test_both_images_are_written_whole(tmp_path: Path) -> None:
    experiment = Experiment("factored-toy", ["safe-psrl"], 300, 2)
    records = [run_job(job, lambda _: None, lambda: False) for job in experiment.jobs()]
    caption = caption_of(experiment, summary_of(experiment.spec, "factored-toy", 300, records))
    paths = draw_figures(tmp_path, experiment.spec, records, caption)
    assert [path.name for path in paths] == ["cumulative_regret.png", "average_regret.png"]
    for path in paths:
        width, height = size_of(path)
        assert width >= 2400  # three panels
        assert height >= 500
        colours = plt.imread(path) @ (256.0 ** np.arange(4))  # a number for each pixel
        assert len(np.unique(colours)) > 50  # more than an empty frame
        assert b"pessimism_coefficient 0.05" in path.read_bytes()  # the caption, as the image's description
    assert sorted(tmp_path.iterdir()) == sorted(paths)
