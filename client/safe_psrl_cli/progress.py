"""Progress bars: what is done, how fast, and how long it will take."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class RateColumn(ProgressColumn):
    """Units a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self._unit}/s", style="progress.data.speed")


def progress_bar(unit: str) -> Progress:
    """On standard error, so that standard output can be read by a script."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        RateColumn(unit),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
    )
