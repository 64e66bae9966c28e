# SPDX-License-Identifier: Apache-2.0
"""A plot of the points as SVG, with log-log axes: two panels per place, time
above, bus bandwidth below; places side by side, at most three in a row."""

import math
from dataclasses import dataclass
from html import escape

from .units import size_text, time_text


@dataclass(frozen=True)
class Look:
    """A series has its own shape, which is legible without the colour, too."""

    colour: str
    shape: str


LOOKS = {
    "ddp": Look("#d62728", "circle"), "ddp-user": Look("#ff9896", "hollow circle"), "ddp-own": Look("#9467bd", "hollow square"),
    "gloo": Look("#1f77b4", "square"), "openmpi": Look("#2ca02c", "triangle"), "mpich": Look("#8c564b", "diamond"),
    "plain": Look("#7f7f7f", "cross"), "memcpy": Look("#17becf", "plus"), "wire": Look("#b0962b", "star"),
}
OTHER = Look("#9467bd", "triangle down")
DASHES = {"memcpy": "2 3", "wire": "2 3", "plain": "6 3", "ddp-user": "8 3 2 3", "ddp-own": "2 2"}
CORNERS = {
    "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)), "diamond": ((0, -5.6), (5.6, 0), (0, 5.6), (-5.6, 0)),
    "triangle": ((0, -5.4), (5.2, 4), (-5.2, 4)), "triangle down": ((0, 5.4), (5.2, -4), (-5.2, -4)),
    "hourglass": ((-4.6, -4.8), (4.6, -4.8), (-4.6, 4.8), (4.6, 4.8)),
}
STROKES = {
    "plus": "M-5,0H5M0,-5V5", "cross": "M-4,-4L4,4M-4,4L4,-4", "star": "M-5,0H5M0,-5V5M-3.4,-3.4L3.4,3.4M-3.4,3.4L3.4,-3.4",
}
LABELS = {
    "ddp": "ours, library memory", "ddp-user": "ours, user memory", "ddp-own": "ours, one rank's memory", "gloo": "gloo (PyTorch)",
    "openmpi": "Open MPI", "mpich": "MPICH", "plain": "plain shared-memory loop", "memcpy": "memcpy (bound)",
    "wire": "TCP stream (bound)",
}
PANEL_WIDTH, PANEL_HEIGHT = 400, 280
LEFT, TOP, GAP_X, GAP_Y = 80, 100, 84, 60
ROW_PLACES, ROW_GAP = 3, 34


class Axis:
    """Maps values to pixels by their logarithm."""

    def __init__(self, values, base, start, end):
        low, high = min(values), max(values)
        self.low = math.floor(math.log(low, base) + 1e-9)
        self.high = max(math.ceil(math.log(high, base) - 1e-9), self.low + 1)
        self.base, self.start, self.end = base, start, end

    def __call__(self, value):
        part = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        return [float(self.base) ** power for power in range(self.low, self.high + 1)]


def text(x, y, content, size=12, anchor="middle", extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f"{extra}>{escape(content)}</text>")


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def mark(look, x, y, scale=1):
    """The mark of a series; a hollow one shows what is below it."""
    hollow, shape = look.shape.startswith("hollow "), look.shape.removeprefix("hollow ")
    paint = f'fill="none" stroke="{look.colour}" stroke-width="1.9"' if hollow else f'fill="{look.colour}"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4.6 * scale:.1f}" {paint}/>'
    if shape in CORNERS:
        points = " ".join(f"{x + dx * scale:.1f},{y + dy * scale:.1f}" for dx, dy in CORNERS[shape])
        return f'<polygon points="{points}" {paint}/>'
    return (f'<path d="{STROKES[shape]}" transform="translate({x:.1f} {y:.1f}) scale({scale:g})" fill="none" '
            f'stroke="{look.colour}" stroke-width="2.2"/>')


def bandwidth_text(gigabytes):
    return f"{gigabytes:g}"


def frame(x, y, axis_x, axis_y, y_title, y_label):
    """Grid, ticks and titles of a panel whose upper left corner is x, y."""
    bottom, right = y + PANEL_HEIGHT, x + PANEL_WIDTH
    parts = []
    for tick in axis_x.ticks():
        at = axis_x(tick)
        parts.append(line(at, y, at, bottom, 'stroke="#e6e6e6"'))
        # Every other power of 4, so that the labels do not touch.
        if round(math.log(tick, 4)) % 2 == 1:
            parts.append(text(at, bottom + 16, size_text(int(tick)), 11))
    for tick in axis_y.ticks():
        at = axis_y(tick)
        parts.append(line(x, at, right, at, 'stroke="#e6e6e6"'))
        parts.append(text(x - 6, at + 4, y_label(tick), 11, "end"))
    parts.append(f'<rect x="{x}" y="{y}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" '
                 'fill="none" stroke="#444"/>')
    parts.append(text((x + right) / 2, bottom + 34, "message size"))
    middle = (y + bottom) / 2
    parts.append(text(x - 58, middle, y_title, extra=f'transform="rotate(-90 {x - 58} {middle})"'))
    return parts


def curve(name, spots, axis_x, axis_y):
    """Spots are (size, median, low, high); low to high is drawn as a bar."""
    look = LOOKS.get(name, OTHER)
    path = " ".join(f"{axis_x(size):.1f},{axis_y(value):.1f}" for size, value, _, _ in spots)
    dash = f' stroke-dasharray="{DASHES[name]}"' if name in DASHES else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{look.colour}" stroke-width="1.8"{dash}/>']
    for size, value, low, high in spots:
        at = axis_x(size)
        parts.append(line(at, axis_y(low), at, axis_y(high),
                          f'stroke="{look.colour}" stroke-width="4" stroke-opacity="0.3"'))
        parts.append(mark(look, at, axis_y(value), 0.65))
    return parts


def time_spot(point):
    return point.size, point.seconds["median"], point.seconds["p25"], point.seconds["p75"]


def bandwidth_spot(point):
    scale = point.bus_bandwidth * point.median / 1e9
    return (point.size, *(scale / point.seconds[key] for key in ("median", "p75", "p25")))


def panel(points, names, x, y, axis_x, spot, axis_values, y_title, y_label):
    axis_y = Axis(axis_values, 10, y + PANEL_HEIGHT, y)
    parts = frame(x, y, axis_x, axis_y, y_title, y_label)
    # Ours last, above the others.
    for name in reversed(names):
        spots = sorted(spot(point) for point in points if point.contender == name)
        if spots:
            parts += curve(name, spots, axis_x, axis_y)
    return parts


def values_of(points, spot):
    return [value for point in points for value in spot(point)[1:]]


def legend(names):
    parts, x = [], LEFT
    for name in names:
        look = LOOKS.get(name, OTHER)
        dash = f' stroke-dasharray="{DASHES[name]}"' if name in DASHES else ""
        parts.append(line(x, 58, x + 26, 58, f'stroke="{look.colour}" stroke-width="2.4"{dash}'))
        parts.append(mark(look, x + 13, 58, 0.8))
        label = LABELS.get(name, name)
        parts.append(text(x + 31, 62, label, 12, "start"))
        x += 48 + 7 * len(label)
    return parts, x


def rows_of(points):
    """The places' names, row by row: those on a node, then those on links."""
    rows = []
    for several in (False, True):
        places = list(dict.fromkeys(point.place for point in points if (point.nodes > 1) == several))
        rows += [places[i : i + ROW_PLACES] for i in range(0, len(places), ROW_PLACES)]
    return rows


def draw_place(points, names, place, x, y, axis_x):
    here = [point for point in points if point.place == place]
    # Places of a kind share their scale.
    alike = [point for point in points if (point.nodes > 1) == (here[0].nodes > 1)]
    lower = y + PANEL_HEIGHT + GAP_Y
    parts = [text(x + PANEL_WIDTH / 2, y - 8, place, 13, extra='font-weight="bold"')]
    parts += panel(here, names, x, y, axis_x, time_spot, values_of(alike, time_spot),
                   "time of one operation", time_text)
    parts += panel(here, names, x, lower, axis_x, bandwidth_spot, values_of(alike, bandwidth_spot),
                   "bus bandwidth, GB/s", bandwidth_text)
    return parts


def draw(points, caption):
    """The SVG as text. `caption` is a line below the title."""
    rows = rows_of(points)
    names = [name for name in LABELS if any(point.contender == name for point in points)]
    sizes = [point.size for point in points]
    keys, legend_width = legend(names)
    row_height = 2 * (PANEL_HEIGHT + GAP_Y) + ROW_GAP
    width = max(LEFT + max(map(len, rows)) * (PANEL_WIDTH + GAP_X), legend_width + 20)
    height = TOP + len(rows) * row_height - ROW_GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Helvetica, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(LEFT, 22, "all_reduce, f32, sum, in place", 16, "start", 'font-weight="bold"'),
        text(LEFT, 40, caption, 11, "start", 'fill="#555"'),
        *keys,
    ]
    for row, places in enumerate(rows):
        for column, place in enumerate(places):
            x = LEFT + column * (PANEL_WIDTH + GAP_X)
            axis_x = Axis(sizes, 4, x, x + PANEL_WIDTH)
            parts += draw_place(points, names, place, x, TOP + row * row_height, axis_x)
    parts.append("</svg>\n")
    return "\n".join(parts)
