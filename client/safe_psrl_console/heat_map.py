"""Draws a grid of coloured cells."""

from dataclasses import asdict

from nicegui.element import Element

from safe_psrl_console.grids import Grid


class HeatMap(Element, component="heat_map.js"):
    def __init__(self, grid: Grid, description: str) -> None:
        super().__init__()
        self.props["description"] = description
        self.show(grid)

    def show(self, grid: Grid) -> None:
        shown = asdict(grid)
        shown["opacities"] = grid.opacities or None
        self.props["grid"] = shown
        self.update()
