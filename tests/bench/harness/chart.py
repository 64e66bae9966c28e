# SPDX-License-Identifier: Apache-2.0
"""The comparison as one plot: SVG for light and dark backgrounds."""

import math
from dataclasses import dataclass
from html import escape

from . import words

WIDTH, LEFT, RIGHT, ROW, HEAD = 900, 318, 64, 21, 25
CHARACTERS = 50  # of a label at the left
# The colours of Okabe and Ito, which people with colour blindness tell apart, less yellow and black, which vanish on one of
# the backgrounds. In grey and beside a colour that returns, the shapes differ: no two contenders have the same.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a8f98")
SHAPES = ("circle", "square", "diamond", "triangle", "plus", "triangle down", "hourglass", "cross", "hollow circle",
          "hollow square", "hollow diamond", "hollow triangle", "star", "hollow triangle down", "hollow hourglass", "triangle left", "triangle right", "pentagon", "hollow triangle left",
          "hollow triangle right", "hollow pentagon")
STYLE = """<style>
.page{fill:#ffffff}.ink{fill:#1f2933}.dim{fill:#5b6672}.grid{stroke:#dfe3e8}.one{stroke:#c0392b}.range{stroke-opacity:.28}.bad{fill:#c0392b;fill-opacity:.07}
@media (prefers-color-scheme:dark){
.page{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9aa5b1}.grid{stroke:#2b323b}.one{stroke:#ff7b72}.range{stroke-opacity:.55}.bad{fill:#ff7b72;fill-opacity:.10}}
</style>"""
CORNERS = {
    "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)), "diamond": ((0, -5.6), (5.6, 0), (0, 5.6), (-5.6, 0)),
    "triangle": ((0, -5.4), (5.2, 4), (-5.2, 4)), "triangle down": ((0, 5.4), (5.2, -4), (-5.2, -4)),
    "triangle left": ((-5.4, 0), (4, -5.2), (4, 5.2)), "triangle right": ((5.4, 0), (-4, -5.2), (-4, 5.2)),
    "pentagon": ((0, -5.4), (5.1, -1.7), (3.2, 4.4), (-3.2, 4.4), (-5.1, -1.7)),
    "hourglass": ((-4.6, -4.8), (4.6, -4.8), (-4.6, 4.8), (4.6, 4.8)),
}
STROKES = {
    "plus": "M-5,0H5M0,-5V5", "cross": "M-4,-4L4,4M-4,4L4,-4", "star": "M-5,0H5M0,-5V5M-3.4,-3.4L3.4,3.4M-3.4,3.4L3.4,-3.4",
}


@dataclass(frozen=True)
class Look:
    """A contender has its own shape, which is legible without the colour."""

    colour: str
    shape: str


def text(x, y, content, size=12, anchor="middle", extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f"{extra}>{escape(content)}</text>")


def line(x1, y1, x2, y2, style):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def mark(look, x, y, scale=1):
    """The mark of a contender; a hollow one shows what is below it."""
    hollow, shape = look.shape.startswith("hollow "), look.shape.removeprefix("hollow ")
    paint = f'fill="none" stroke="{look.colour}" stroke-width="1.9"' if hollow else f'fill="{look.colour}"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{4.6 * scale:.1f}" {paint}/>'
    if shape in CORNERS:
        points = " ".join(f"{x + dx * scale:.1f},{y + dy * scale:.1f}" for dx, dy in CORNERS[shape])
        return f'<polygon points="{points}" {paint}/>'
    return (f'<path d="{STROKES[shape]}" transform="translate({x:.1f} {y:.1f}) scale({scale:g})" fill="none" '
            f'stroke="{look.colour}" stroke-width="2.2"/>')


class Scale:
    """Ratios to pixels by their logarithm."""

    def __init__(self, ratios):
        self.low = math.floor(math.log10(min([*ratios, 0.5])) * 10) / 10
        self.high = math.ceil(math.log10(max([*ratios, 2])) * 10 + 0.5) / 10

    def __call__(self, ratio):
        part = (math.log10(max(ratio, 1e-9)) - self.low) / (self.high - self.low)
        return LEFT + min(max(part, 0), 1) * (WIDTH - LEFT - RIGHT)

    def ticks(self):
        wide = self.high - self.low > 2.5
        digits = (1,) if wide and self.high - self.low > 4 else (1, 3) if wide else (1, 2, 5)
        found = [digit * 10.0 ** power for power in range(math.floor(self.low), math.ceil(self.high) + 1) for digit in digits]
        return [tick for tick in sorted({*found, 0.5}) if self.low <= math.log10(tick) <= self.high]


def looks(names):
    """A look for each label; a contender has the same in every plot."""
    labels = dict.fromkeys(words.label(name) for name in (*words.CONTENDERS, *names))
    if len(labels) > len(SHAPES):
        raise ValueError(f"{len(labels)} contenders need as many shapes, and there are {len(SHAPES)}: add one to SHAPES")
    return {label: Look(COLOURS[at % len(COLOURS)], SHAPES[at]) for at, label in enumerate(labels)}


def shortened(content, most):
    return content if len(content) <= most else content[:most - 1].rstrip(" ,") + "…"


class Chart:
    def __init__(self, figures, caption):
        self.figures = [figure for figure in figures if figure.peers]
        self.caption = caption
        names = dict.fromkeys(name for figure in self.figures for name in figure.peers)
        here = {words.label(name) for name in names}
        self.looks = {label: look for label, look in looks(names).items() if label in here}
        self.scale = Scale([figure.ratio(name)[0] for figure in self.figures for name in figure.peers])
        self.parts, self.y = [], 0

    def legend(self):
        x = 14
        self.y = 66
        for head, look in self.looks.items():
            wide = 34 + 6.6 * len(head)
            if x + wide > WIDTH:
                x, self.y = 14, self.y + 20
            self.parts += [mark(look, x + 5, self.y - 4), text(x + 16, self.y, head, 12, "start", 'class="ink"')]
            x += wide
        self.y += 34

    def row(self, figure):
        middle = self.y + ROW / 2
        self.parts.append(text(LEFT - 12, middle + 4, shortened(figure.what, CHARACTERS), 11.5, "end", 'class="ink"'))
        for name in sorted(figure.peers, key=lambda name: -figure.ratio(name)[0]):
            ratio, least, most = figure.ratio(name)
            look = self.looks[words.label(name)]
            self.parts.append(line(self.scale(least), middle, self.scale(most), middle,
                                   f'class="range" stroke="{look.colour}" stroke-width="5" stroke-linecap="round"'))
            self.parts.append(mark(look, self.scale(ratio), middle))
        ratio = figure.ratio(figure.best)[0]
        weight = ' font-weight="bold"' if words.is_behind(ratio) else ""
        self.parts.append(text(WIDTH - 10, middle + 4, words.times(ratio), 11.5, "end", f'class="ink"{weight}'))
        self.y += ROW

    def rows(self):
        part = None
        for figure in self.figures:
            if figure.part != part:
                part = figure.part
                self.parts.append(text(14, self.y + HEAD - 8, part.replace("`", ""), 12.5, "start", 'class="ink" font-weight="bold"'))
                self.y += HEAD
            self.row(figure)

    def axis(self, top, bottom):
        """What lies below the rows."""
        one = self.scale(1)
        parts = [f'<rect class="bad" x="{LEFT}" y="{top}" width="{one - LEFT:.1f}" height="{bottom - top}"/>']
        for tick in self.scale.ticks():
            at = self.scale(tick)
            parts += [line(at, top, at, bottom, 'class="grid"'), text(at, bottom + 16, f"{tick:g}x", 11, "middle", 'class="dim"')]
        return [*parts, line(one, top, one, bottom, 'class="one" stroke-width="1.6"')]

    def svg(self):
        self.legend()
        top = self.y
        self.parts += [text(self.scale(1) + 6, top - 6, "ours is ahead →", 11, "start", 'class="dim"'),
                       text(self.scale(1) - 6, top - 6, "← behind", 11, "end", 'class="dim"'),
                       text(WIDTH - 10, top - 6, "best of the others", 11, "end", 'class="dim"')]
        self.rows()
        bottom = self.y + 4
        height = bottom + 32
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" '
                'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">')
        title = "What others take over what slurm-ddp takes (time, or memory)"
        return "\n".join([head, f"<title>{title}</title>", STYLE, f'<rect class="page" width="{WIDTH}" height="{height}"/>',
                          text(14, 24, title, 16, "start", 'class="ink" font-weight="bold"'),
                          text(14, 42, self.caption, 11, "start", 'class="dim"'),
                          *self.axis(top, bottom), *self.parts, "</svg>\n"])


def draw(figures, caption):
    """The SVG as text: what the others take over what ours takes, by a logarithmic scale."""
    return Chart(figures, caption).svg()
