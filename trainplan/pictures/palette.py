"""The colours of all pictures: Okabe and Ito's palette, which the colour-blind tell apart, and lighter shades of it.

Only the best or proven result of a picture has the strongest colour.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"
PURPLE = "#8c6bb1"  # not of the palette: an eighth
SERIES: tuple[str, ...] = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW, PURPLE)
LIGHTER: tuple[str, ...] = ("#7fb8d8", "#f2cf80", "#7fceb9", "#e5bcd3", "#aad9f4", "#eaae7f", "#f7f1a0", "#c5b5d8")
BEST, OTHER, BOUND = VERMILION, BLUE, "#7a7a7a"
GRID = "#e6e6e6"
MARKERS = "osD^vPXp"


def series(index: int) -> dict[str, str]:
    """Colour and marker, as keyword arguments of matplotlib's plot, for the line with this index in a picture; the line that
    is drawn as the best one has its own style. Among 24 consecutive indices all styles differ.
    """
    colours = [colour for colour in SERIES if colour not in (BEST, YELLOW)]  # yellow lines are lost on white
    return {"color": colours[index % len(colours)], "marker": MARKERS[index % len(MARKERS)]}
