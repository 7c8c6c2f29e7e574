"""The appearance: one style sheet, light and dark, from the files beside this one. Nothing is loaded from other hosts."""

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent

HEAD: Final = (
    '<meta name="description" content="Safe PSRL: are the constraints holding?">'
    f"<style>{(HERE / 'console.css').read_text(encoding='utf-8')}</style>"
    f"<script>{(HERE / 'theme.js').read_text(encoding='utf-8')}</script>"
)

ICON: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<rect width="32" height="32" rx="8" fill="#0b4f7d"/>
<path d="M5 10h22" stroke="#f5b942" stroke-width="2.6" stroke-dasharray="4 2.6"/>
<path d="M5 26c4 0 5-11 9-11s4 3 7 0 4-2 6-2" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>"""

# For categories: the palette of Okabe and Ito, which colour-blind people can tell apart.
CATEGORIES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f")

# For quantities, from little to much: cividis, which is as even for colour-blind people as for others.
SEQUENCE: Final = ("#00224e", "#1f3a6d", "#434e6c", "#61646f", "#7d7c78", "#9b9476", "#bbaf6e", "#dccb5c", "#fee838")
