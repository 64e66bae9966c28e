# SPDX-License-Identifier: Apache-2.0
"""The document of the comparison, in Markdown."""

import json
import re
import textwrap

from . import words
from .comparison import as_entry, from_entry
from .report import KIB, MIB

SCALES = ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
BYTES = ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def number(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def spread_text(of, unit):
    """The median with its unit, and the range in the same unit, if there is one."""
    scale, name = 1, ""
    if unit:
        scales = SCALES if unit == "s" else BYTES
        scale, name = next((pair for pair in scales if of.median >= pair[0]), scales[-1])
    median = f"{number(of.median / scale)} {name}".rstrip()
    if of.low == of.high:
        return median
    return f"{median} ({number(of.low / scale)} to {number(of.high / scale)})"


def table(figures):
    """A line for each figure, a column for each contender."""
    peers = list(dict.fromkeys(name for figure in figures for name in figure.peers))
    bounds = list(dict.fromkeys(name for figure in figures for name in figure.bounds))
    heads = ["", "ours", *map(words.label, peers), *(f"*{words.label(name)}*" for name in bounds)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for figure in figures:
        cells = [figure.what, spread_text(figure.ours, figure.unit)]
        for name in peers:
            if name not in figure.peers:
                cells.append("")
                continue
            ratio = words.times(figure.ratio(name)[0])
            cells.append(f"{spread_text(figure.peers[name], figure.unit)}, {f'**{ratio}**' if words.is_behind(figure.ratio(name)[0]) else ratio}")
        cells += [spread_text(figure.bounds[name], figure.unit) if name in figure.bounds else "" for name in bounds]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(figures):
    """A table for all figures that follow each other and are compared with the same, so that few cells are empty."""
    groups = []
    for figure in figures:
        if groups and (set(groups[-1][-1].peers) & set(figure.peers) or not figure.peers and not groups[-1][-1].peers):
            groups[-1].append(figure)
        else:
            groups.append([figure])
    return "\n\n".join(map(table, groups))


def range_text(ratio):
    return f"{words.times(ratio[0])} ({ratio[1]:.2f} to {ratio[2]:.2f})"


def shortfalls(figures):
    """Where somebody else is ahead, or a goal is missed: a line each, with the reason if that is known."""
    lines = []
    for figure in figures:
        head = f"- {figure.part}, {figure.what}: "
        behind = sorted((name for name in figure.peers if words.is_behind(figure.ratio(name)[0])), key=lambda name: figure.ratio(name)[0])
        for name in behind:
            ratio = figure.ratio(name)
            level = ", but the ranges overlap" if ratio[2] >= 1 else ""
            lines.append(f"{head}{words.label(name)} is ahead, {range_text(ratio)}{level}.{reason(figure, name)}")
        if not behind and figure.ahead is False:
            ratio = figure.ratio(figure.best)
            lines.append(f"{head}ours is ahead of {words.label(figure.best)}, {range_text(ratio)}; the goal is "
                         f"{words.times(figure.wanted)}.{reason(figure, figure.best)}")
        if figure.beyond:
            name, ratio = figure.over_bound()
            lines.append(f"{head}{range_text(ratio)} of {words.label(name)}; the goal is at most {words.times(figure.within)}."
                         f"{reason(figure, name)}")
    return lines


def reason(figure, name):
    text = words.reason(figure, name)
    return f" {text[0].upper()}{text[1:]}" if text else " The reason is not known yet."


def told(names, table_of):
    return [f"- **{table_of[name][0]}**: {table_of[name][1]}." for name in table_of if name in names]


def contenders(figures):
    peers = {name for figure in figures for name in figure.peers}
    bounds = {name for figure in figures for name in figure.bounds}
    parts = ["## Who is compared", "", *told(peers, words.CONTENDERS), ""]
    if bounds & set(words.BOUNDS):
        parts += ["A column in italics is no product. It tells what the machine, or the program around, takes anyway:", "",
                  *told(bounds, words.BOUNDS), ""]
    return parts


def command_text(command):
    return re.sub(r"--python \S+", "--python PYTHON", command)


def without_folders(text):
    """The words of a failure, with the names of files alone: where they lie is of this machine only."""
    return re.sub(r"(?<![\w./])/(?:[\w.+-]+/)+", "", text)


def noted(entry):
    """What the document tells of a part. It names no path of the machine."""
    changed = {"command": command_text(entry["command"])}
    if "failure" in entry:
        changed["failure"] = without_folders(entry["failure"])
    if "left_out" in entry:
        changed["left_out"] = [without_folders(text) for text in entry["left_out"]]
    return {**entry, **changed}


def wrapped(text):
    """Lines of at most 120 characters, except those of tables."""
    lines = []
    for line in text.splitlines():
        if len(line) <= 120 or line.startswith("|"):
            lines.append(line)
        else:
            lines += textwrap.wrap(line, 120, break_long_words=False, break_on_hyphens=False, subsequent_indent="  " if line[:2] == "- " else "")
    return "\n".join(lines) + "\n"


def versions_text(run):
    """What was measured. A run that went on after a commit has parts of several of ours."""
    ours = run["versions"].get("slurm-ddp")
    versions = {"slurm-ddp": ", ".join(dict.fromkeys(entry.get("version", ours) for entry in run["parts"].values()))} if ours else {}
    return ", ".join(f"{name} {text}" for name, text in {**run["versions"], **versions}.items() if text != "not installed")


def command_line(entry):
    version = f"{entry['version']}, " if "version" in entry else ""
    return f"- `{entry['command']}` ({version}{entry['seconds']:.0f} s)"


def isa_text(machine):
    return f" ({', '.join(machine['isa'])})" if machine.get("isa") else ""


def document(figures, run, plot_name):
    """The whole text. `run` is what `all` notes of its run."""
    machine, quick = run["machine"], run["quick"]
    entries = {name: noted(entry) for name, entry in run["parts"].items()}
    arguments = " BENCH_ARGS=\"--quick --python PYTHON\"" if quick else " BENCH_ARGS=\"--python PYTHON\""
    note = f". {run['note']}" if run.get("note") else ""
    missing = [name for name, text in run["versions"].items() if text == "not installed"]
    parts = [
        "# slurm-ddp beside others", "",
        "`make bench-all` has measured all figures of this page on one machine, and `tests/bench/all` has written the page: "
        "change no figure by hand. Both sides of each line took turns, round by round, on the same machine.", "",
        "A cell has the median of all rounds and, in brackets, the lowest and the highest value. Behind it stands how many "
        "times as much as ours that is: 2x says that the other takes twice as long, or twice the memory. A number below 1, "
        "in **bold**, says that the other is ahead.", "",
        f"- Date: {run['date']}{'. This was a short run (`--quick`)' if quick else ''}{note}",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores{isa_text(machine)}, Linux {machine['kernel']}; load when the run began: "
        f"{machine['load_at_start']:.1f}. Nodes are network namespaces of this machine, so all ranks share its cores",
        f"- Versions: {versions_text(run)}",
        f"- To repeat: `make bench-all{arguments}` as root, where PYTHON has the PyTorch to compare with", "",
        f"![what others take over what slurm-ddp takes]({plot_name})", "",
    ]
    shortfall = shortfalls(figures)
    parts += ["## Where somebody else is ahead, or a goal is missed", "", *(shortfall or ["Nowhere in this run."]), ""]
    for part in dict.fromkeys(figure.part for figure in figures):
        text = words.PARTS.get(part)
        parts += [f"## {part[0].upper()}{part[1:]}", "", *([text, ""] if text else []),
                  tables([figure for figure in figures if figure.part == part]), ""]
    parts += contenders(figures)
    failures = {name: entry["failure"] for name, entry in entries.items() if "failure" in entry}
    left = [f"- `{name}`: {text}" for name, text in failures.items()]
    left += [f"- `{name}`: {text}" for name, entry in entries.items() for text in entry.get("left_out", [])]
    left += [f"- {name} was not installed" for name in missing]
    if left:
        parts += ["## What is left out, or was tried again", "", *left, ""]
    parts += ["## Commands", "", *map(command_line, entries.values()), ""]
    return wrapped("\n".join(parts))


def as_file(figures, run):
    """What the document is made of, for its JSON."""
    parts = {name: noted(entry) for name, entry in run["parts"].items()}
    return {"run": {**run, "parts": parts}, "figures": [as_entry(figure) for figure in figures]}


def as_json(value, column=0):
    """JSON in which each value that fits a line has one."""
    line = json.dumps(value)
    if column + len(line) < 119 or not isinstance(value, (dict, list)):
        return line
    pad = "\n" + " " * (column + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {as_json(part, column + 1)}" for key, part in value.items()]
        return "{" + pad + ("," + pad).join(parts) + pad[:-1] + "}"
    return "[" + pad + ("," + pad).join(as_json(part, column + 1) for part in value) + pad[:-1] + "]"


def of_file(content):
    return [from_entry(entry) for entry in content["figures"]], content["run"]
