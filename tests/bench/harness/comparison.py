# SPDX-License-Identifier: Apache-2.0
"""What benchmarks measured of us and of others, as lines that can stand beside one another: read from the benchmarks'
JSON, and written as tables and as one plot. All figures are such that less is better."""

import math
import statistics
from dataclasses import dataclass, field

from .plot import line, text
from .units import KIB, MIB, size_text, time_text

OURS = "ours"
LABELS = {"openmpi": "Open MPI", "mpich": "MPICH", "plain": "a plain loop", "pytorch": "PyTorch", "memcpy": "memcpy"}


@dataclass
class Spread:
    median: float
    low: float
    high: float


def spread(values):
    return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass
class Figure:
    """Of one thing, ours and the others'. `wanted` is how many times ours the best of the others is to take at least;
    `unit` is s, B, or '' for what is told as a number. A bound is no other product, but what the machine can do."""

    part: str
    what: str
    unit: str
    ours: Spread
    peers: dict
    wanted: float = 1.0
    bounds: dict = field(default_factory=dict)

    @property
    def best(self):
        """The name of the best of the others; None: there is none."""
        return min(self.peers, key=lambda name: self.peers[name].median) if self.peers else None

    def ratio(self, name):
        """How many times ours it takes, and the range that the two ranges leave."""
        other = self.peers[name]
        return (other.median / self.ours.median, other.low / self.ours.high, other.high / self.ours.low)

    @property
    def ahead(self):
        """True, False; None: nothing to compare with."""
        return self.ratio(self.best)[0] >= self.wanted if self.peers else None


def value_text(value, unit):
    if unit == "s":
        return time_text(value)
    if unit == "B":
        return f"{value / MIB:.1f} MiB" if value >= MIB else f"{value / KIB:.0f} KiB"
    return f"{value:.3g}"


def spread_text(figure, of):
    return f"{value_text(of.median, figure.unit)} ({value_text(of.low, figure.unit)} to {value_text(of.high, figure.unit)})"


def ratio_text(ratio):
    return f"{ratio[0]:.2f}x"


# ---- what each benchmark's file says ------------------------------------------------------


def of_allreduce(document):
    """Medians and quartiles by place and size; the memory of ours is the library's."""
    places = {}
    for point in document["points"]:
        at = places.setdefault((point["place"], point["bytes"]), {})
        seconds = point["seconds"]
        at[point["contender"]] = Spread(seconds["median"], seconds["p25"], seconds["p75"])
    for (place, size), of in places.items():
        if "ddp" in of:
            bounds = {name: of[name] for name in ("memcpy", "wire", "plain") if name in of}
            peers = {name: value for name, value in of.items() if not name.startswith("ddp") and name not in bounds}
            yield Figure("all_reduce", f"{size_text(size)}, {place}", "s", of["ddp"], peers, bounds=bounds)


def of_startup(document):
    seconds = {name: spread(values) for name, values in document["seconds"].items()}
    bounds = {"srun true": seconds.pop("srun true")} if "srun true" in seconds else {}
    ours = seconds.pop(OURS)
    yield Figure("launch", "srun to the first all-reduce, 2 nodes of 2 ranks", "s", ours, seconds, 10, bounds)


def of_wireup(document):
    for entry in document["entries"]:
        peers = {name: Spread(*values) for name, values in entry["peers"].items()}
        yield Figure("wire-up", f"{entry['what']}, {entry['ranks']} ranks of a node", entry["unit"],
                     Spread(*entry["ours"]), peers)


def of_spank_cost(document):
    """Of ours, what a step that does nothing takes; the other has no plugin."""
    low, high = document["median_ratio_range"]
    plain = document["srun_ms"] * 1e-3
    yield Figure("launch", "srun of a program that ends at once, 2 nodes of 2 tasks", "s",
                 Spread(plain * document["median_ratio"], plain * low, plain * high),
                 {"srun without --ddp": Spread(plain, plain, plain)}, 1 / 1.15)


def of_ddp_overhead(document):
    torch = document["pytorch"]
    ours = Spread(*relative([step["slowest"] for step in document["steps"]["default"]],
                            [step["mean"] for step in document["steps"]["single"]]))
    peers = {"pytorch": Spread(*relative(torch[1], torch[0]))} if torch else {}
    yield Figure("training step", f"a GPT's step on {document['ranks']} ranks of a node over that on one", "", ours, peers)


def relative(values, single):
    base = statistics.median(single)
    return statistics.median(values) / base, min(values) / base, max(values) / base


def of_gpt_step(document):
    for result in document["results"]:
        name = "torch.compile" if document["dtype"] == "bf16" else "pytorch"
        peers = {name: spread(result["pytorch"])} if result["pytorch"] else {}
        bounds = {}
        if result["sgemm"]:
            bounds["the products alone"] = spread([document["flops"] / (rate * 1e9) for rate in result["sgemm"]])
        yield Figure("training step", f"GPT, {document['dtype']}, {result['threads']} thread(s)", "s", spread(result["gpt"]),
                     peers, 1.3 if document["dtype"] == "f32" else 1.0, bounds)


def of_vision_step(document):
    for result in document["results"]:
        if "threads" in result:
            peers = {f"PyTorch {name}".replace("_", " "): spread(seconds) for name, seconds in result.items()
                     if name not in ("model", "threads", OURS)}
            yield Figure("training step", f"{result['model']}, {result['threads']} thread(s)", "s", spread(result[OURS]), peers, 1.15)


def of_overlap(document):
    def ratios(rounds):
        return [modes["overlapped"]["step_seconds"] / max(modes["compute_only"]["step_seconds"], modes["serial"]["tail_seconds"]
                                                         - modes["compute_only"]["tail_seconds"]) for modes in rounds]

    peers = {"pytorch": spread(ratios(document["torch"]))} if document["torch"] else {}
    yield Figure("overlap", f"a step over the longer of computing and communicating, links of {document['rate']}", "",
                 spread(ratios(document["rounds"])), peers)


def of_checkpoint_step(document):
    whole = {way: spread(result["rounds"]) for way, result in document.items()}
    for way, ours in whole.items():
        if way != "none":
            yield Figure("checkpoint", f"12 steps with checkpoints, {way}", "s", ours, {}, bounds={"no checkpoint": whole["none"]})


def of_recovery(document):
    for failure in dict.fromkeys(row["failure"] for row in document["results"]):
        rest = {}
        for row in document["results"]:
            if row["failure"] == failure and row["seconds"] is not None:
                rest.setdefault(row["way"], []).append(row["seconds"] - row["start"])
        ours = next((way for way in rest if way == "srun pytorch"), None)
        if ours:
            peers = {way: spread(values) for way, values in rest.items() if not way.startswith("srun")}
            yield Figure("recovery", f"{failure} to the next step of a PyTorch program, without its start", "s",
                         spread(rest[ours]), peers)


def of_python(document):
    for entry in document["figures"]:
        yield Figure("PyTorch over libddp", entry["what"], entry["unit"], Spread(*entry["ours"]),
                     {name: Spread(*values) for name, values in entry["peers"].items()}, entry["wanted"])


# ---- what is written ----------------------------------------------------------------------


def table(figures):
    """Markdown; a line for each of the others, the best first."""
    lines = ["| | ours | the others | over ours |", "|---|---|---|---|"]
    for figure in figures:
        names = sorted(figure.peers, key=lambda name: figure.peers[name].median)
        others = [f"{LABELS.get(name, name)} {spread_text(figure, figure.peers[name])}" for name in names]
        ratios = [ratio_text(figure.ratio(name)) for name in names]
        others += [f"({LABELS.get(name, name)} {value_text(bound.median, figure.unit)})" for name, bound in figure.bounds.items()]
        mark = "" if figure.ahead is not False else " **behind**" if figure.ratio(figure.best)[0] < 1 else \
            f" (wanted: {figure.wanted:.2f}x)"
        lines.append(f"| {figure.what} | {spread_text(figure, figure.ours)} | {'; '.join(others) or '-'} | "
                     f"{', '.join(ratios) or '-'}{mark} |")
    return "\n".join(lines)


WIDTH, LEFT, RIGHT, TOP, ROW = 980, 420, 150, 64, 22
COLOURS = ("#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22")


def draw(figures, caption):
    """SVG: how many times ours each of the others takes; right of the line they are slower."""
    shown = [figure for figure in figures if figure.peers]
    names = list(dict.fromkeys(name for figure in shown for name in figure.peers))
    values = [figure.ratio(name)[0] for figure in shown for name in figure.peers] + [0.5, 2]
    low, high = math.floor(math.log10(min(values)) * 2) / 2, math.ceil(math.log10(max(values)) * 2) / 2

    def at(value):
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    height = TOP + ROW * len(shown) + 70
    bottom = TOP + ROW * len(shown)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
             'font-family="DejaVu Sans, Helvetica, sans-serif">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
             text(12, 24, "Time of others over ours (more is better for us)", 15, "start", 'font-weight="bold"'),
             text(12, 42, caption, 11, "start", 'fill="#555"')]
    for power in range(math.ceil(low * 2), math.floor(high * 2) + 1):
        tick = 10 ** (power / 2)
        parts.append(line(at(tick), TOP, at(tick), bottom, 'stroke="#e6e6e6"'))
        parts.append(text(at(tick), bottom + 16, f"{tick:.2g}x" if tick < 50 else f"{tick:.0f}x", 10))
    parts.append(line(at(1), TOP - 6, at(1), bottom + 4, 'stroke="#d62728" stroke-width="1.6"'))
    for row, figure in enumerate(shown):
        y = TOP + ROW * (row + 0.5)
        parts.append(text(LEFT - 10, y + 4, f"{figure.part}: {figure.what}"[:70], 10, "end"))
        for name in figure.peers:
            ratio, least, most = figure.ratio(name)
            colour = COLOURS[names.index(name) % len(COLOURS)]
            left, right = at(max(least, 10 ** low)), at(min(most, 10 ** high))
            parts.append(line(left, y, right, y, f'stroke="{colour}" stroke-width="4" stroke-opacity="0.25"'))
            parts.append(f'<circle cx="{at(ratio):.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(text(WIDTH - RIGHT + 12, y + 4, ratio_text(figure.ratio(figure.best)), 10, "start"))
    x = 12
    for number, name in enumerate(names):
        label = LABELS.get(name, name)
        parts.append(f'<circle cx="{x + 5}" cy="{height - 18}" r="4" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(text(x + 14, height - 14, label, 11, "start"))
        x += 30 + 7 * len(label)
    parts.append("</svg>\n")
    return "\n".join(parts)
