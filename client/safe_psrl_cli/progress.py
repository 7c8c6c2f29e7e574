"""The progress bar: count, rate and time left, at 80 columns."""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

LONGEST_DESCRIPTION = 20


class DoneColumn(ProgressColumn):
    """Done and total, where the total is known."""

    def __init__(self, unit: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._unit = unit

    def render(self, task: Task) -> Text:
        done = "" if task.total is None else f"{task.completed:,.0f}/{task.total:,.0f} {self._unit}"
        return Text(done, style="progress.download")


class RateColumn(ProgressColumn):
    """Per second."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, justify="right"))

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


def progress_bar(unit: str, longest_description: int = LONGEST_DESCRIPTION) -> Progress:
    """On standard error, so that standard output can be read by a script."""
    return Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=longest_description)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        DoneColumn(unit),
        RateColumn(),
        TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
        expand=True,
    )
