# SPDX-License-Identifier: Apache-2.0
"""ddp-report --record: merges the flight records of a step's ranks, says which rank is where, and draws it.

A record is a line of JSON (spank/witness/rings.h) in DIR/JOB.STEP/rank-N.jsonl. Each rank's last record of the last
generation counts, or the record of a stall in which its program was ended. Operations are put in order by their number in their group and lane, which all its ranks share.
"""
import html
import json
import re
from pathlib import Path

WAIT_SECONDS = 1.0   # an operation that has lasted for less is no reason to say that its rank waits
TABLE_COLUMNS = 5    # of the table: the last operations before the one that somebody waits in
SHOWN_MAX = 8        # sequences, and messages, of which sentences tell
TYPE_BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i32": 4, "i64": 8, "u8": 1, "i8": 1, "bool": 1,
              "u32": 4, "u64": 8}
OF_ALL, DEVICE = 1, 2
UNKNOWN_END = 255
# No rank can end one of these well before all ranks have begun it.
MEETS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
COLOURS = {"all_reduce": "#3b82c4", "broadcast": "#5aa469", "reduce_scatter": "#8e6bbf", "all_gather": "#3aa6a6",
           "send": "#b5893b", "recv": "#b5893b", "barrier": "#7f7f7f"}


class Broken(Exception):
    """A line that is no record, with the reason."""


# ---- reading -------------------------------------------------------------------------


def number(value, low, high, what):
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Broken(f"{what} is {str(value)[:40]!r}")
    return value


def text(value, what, most=1 << 20):
    if not isinstance(value, str) or len(value) > most:
        raise Broken(f"{what} is no text")
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in value)


class Operation:
    def __init__(self, writer, columns, values):
        if not isinstance(values, list) or len(values) < len(columns):
            raise Broken("an operation lacks columns")
        of = dict(zip(columns, values))
        big = (1 << 64) - 1
        self.writer = writer
        self.number = number(of["number"], 0, big, "number")
        self.group, self.lane = text(of["group"], "group", 32), number(of["lane"], 0, 255, "lane")
        self.kind, self.type, self.op = (text(of[key], key, 64) for key in ("kind", "type", "op"))
        self.count = number(of["count"], 0, big, "count")
        self.peer = number(of["peer"], -(1 << 31), 1 << 31, "peer")
        self.tag = number(of["tag"], 0, big, "tag")
        self.ranks = number(of["ranks"], 0, 1 << 32, "ranks")
        self.flags = number(of["flags"], 0, 255, "flags")
        self.begin, self.end = number(of["begin_ns"], 0, big, "begin_ns"), number(of["end_ns"], 0, big, "end_ns")
        self.state = number(of["state"], 0, 255, "state")
        self.where = text(of["where"], "where", 64)

    @property
    def key(self):
        return self.writer, self.group, self.lane, self.flags & DEVICE

    @property
    def is_message(self):
        return self.kind in ("send", "recv") or self.number == 0

    @property
    def is_open(self):
        """It has not ended, or it has ended with an error."""
        return self.end == 0 or self.state not in (0, UNKNOWN_END)

    @property
    def same(self):
        """What all ranks of the group have to give alike."""
        return (self.kind, self.type, 0 if self.kind == "all_to_all" else self.count, self.op, self.peer)

    def describe(self):
        """all_reduce f32[100] sum"""
        said = self.kind
        if self.type and self.kind != "barrier":
            said += f" {self.type}[{self.count}]"
        if self.op:
            said += f" {self.op}"
        if self.kind == "send" or self.kind == "recv":
            said += f" {'to' if self.kind == 'send' else 'from'} {self.peer if self.peer >= 0 else 'any rank'}"
        elif self.peer >= 0:
            said += f" root {self.peer}"
        return said

    def size(self):
        """25 MiB"""
        amount = self.count * TYPE_BYTES.get(self.type, 0)
        for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if amount >= unit:
                return f"{amount / unit:.4g} {name}"
        return f"{amount} B" if amount and self.kind != "barrier" else ""

    def at(self):
        return f" at {self.where}" if self.where else ""


class Record:
    def __init__(self, line):
        try:
            of = json.loads(line)
        except (ValueError, RecursionError) as reason:
            raise Broken("it is no JSON") from reason
        if not isinstance(of, dict) or of.get("format") != "slurm-ddp record":
            raise Broken("it is no record")
        if of.get("version") != 1:
            raise Broken(f"it has version {str(of.get('version'))[:20]}, and this ddp-report knows version 1")
        try:
            self.fill(of)
        except (KeyError, TypeError) as reason:
            raise Broken(f"it lacks {reason}") from reason

    def fill(self, of):
        self.rank = number(of["rank"], 0, 1 << 32, "rank")
        self.world_size = number(of["world_size"], 0, 1 << 32, "world_size")
        self.generation = number(of["generation"], 0, 1 << 32, "generation")
        self.now = number(of["now_ns"], 0, 1 << 64, "now_ns")
        self.real = number(of["real_ns"], 0, 1 << 64, "real_ns")
        for key in ("reason", "node", "end", "doing", "error", "threads"):
            setattr(self, key, text(of[key], key))
        columns, self.operations = of["columns"], []
        if not isinstance(of["rings"], list) or not isinstance(columns, list):
            raise Broken("it has no rings")
        for ring in of["rings"]:
            writer = text(ring["writer"], "writer", 32)
            self.operations += [Operation(writer, columns, values) for values in ring["operations"]]
        self.operations.sort(key=lambda operation: (operation.begin, operation.number))

    @property
    def is_stopped(self):
        """All its threads were stopped (spank/witness/dump.c)."""
        states = re.findall(r"^thread \d+ \(.*\) (is stopped|is traced|\w+)", self.threads, re.MULTILINE)
        return bool(states) and all(state in ("is stopped", "is traced") for state in states)

    def has_gone_on_since(self, record):
        """Whether an operation has ended well since an earlier record. Python's hooks do not tell how one ends."""
        return any(operation.end > record.now and (operation.state == 0 or
                                                   operation.state == UNKNOWN_END and operation.begin > record.now)
                   for operation in self.operations)

    def seconds_since(self, time):
        return max(0.0, (self.now - time) * 1e-9)

    def real_of(self, time):
        """A time of the rank's monotonic clock as seconds of the calendar's."""
        return (self.real - (self.now - time)) * 1e-9


def read_file(path, warn):
    records = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for count, line in enumerate(lines, 1):
            try:
                records.append(Record(line))
            except Broken as reason:
                warn(f"line {count} of {path} is left out: {reason}")
    return records


def find_folder(folder):
    """The step's folder: DIR itself, or that of DIR with the newest record."""
    if any(folder.glob("rank-*.jsonl")):
        return folder
    steps = [path for path in folder.glob("*.*") if re.fullmatch(r"\d+\.\d+", path.name) and any(path.glob("rank-*.jsonl"))]
    # A record that is added to a file does not change the folder's time.
    return max(steps, key=lambda path: max(file.stat().st_mtime for file in path.glob("rank-*.jsonl")), default=None)


class Step:
    """The record of each rank that counts, what its records tell of threads, and how its program ended after a stall."""

    def __init__(self, records):
        self.generation = max(record.generation for record in records)
        self.ranks, self.threads, self.ends = {}, {}, {}
        stalls = {}
        for record in sorted(records, key=lambda record: record.real):
            if record.generation != self.generation:
                continue
            self.ranks[record.rank] = record
            if record.threads:
                self.threads[record.rank] = record
            if record.reason == "stall":
                stalls[record.rank] = record
        if self.ended_in(stalls):
            self.ends = {rank: record.end for rank, record in self.ranks.items() if record.end}
            self.ranks.update(stalls)
            self.threads.update((rank, record) for rank, record in stalls.items() if record.threads)
        self.world_size = max(record.world_size for record in self.ranks.values())
        self.missing = [rank for rank in range(min(self.world_size, 1 << 20)) if rank not in self.ranks]


    def ended_in(self, stalls):
        """Whether ranks have ended in a stall. What they did then, as when Slurm killed them, is no cause."""
        return any(self.ranks[rank].reason in ("failure", "end") for rank in stalls) and not any(
            self.ranks[rank].has_gone_on_since(record) for rank, record in stalls.items())


def read(folder, warn):
    records = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        if path.is_file():
            records += read_file(path, warn)
    return Step(records) if records else None


# ---- who is where --------------------------------------------------------------------


def ranges(ranks):
    """0-2, 5"""
    said, ranks = [], sorted(ranks)
    while ranks:
        last = 0
        while last + 1 < len(ranks) and ranks[last + 1] == ranks[last] + 1:
            last += 1
        said.append(str(ranks[0]) if last == 0 else f"{ranks[0]}-{ranks[last]}")
        ranks = ranks[last + 1:]
    return ", ".join(said)


def name_ranks(ranks):
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"


class Sequence:
    """The collectives of a group and lane, by rank and number."""

    def __init__(self, key, step):
        self.writer, self.step, self.of = key[0], step, {}
        self.lane, self.size, self.of_all = key[2], 0, False

    def add(self, rank, operation):
        self.of.setdefault(rank, {})[operation.number] = operation
        self.size = max(self.size, operation.ranks)
        self.of_all = self.of_all or bool(operation.flags & OF_ALL)

    def settle(self):
        """Ranks whose ring has none of the group's operations have begun none of them, or it is long ago."""
        if self.of_all:
            for rank in self.step.ranks:
                self.of.setdefault(rank, {})
        self.last = {rank: max(operations, default=0) for rank, operations in self.of.items()}
        numbers = sorted({number for operations in self.of.values() for number in operations})
        self.odd = next((number for number in numbers if len(self.answers(number)) > 1), None)
        self.front = self.find_front([number for number in numbers if self.waiting(number)])

    def find_front(self, numbers):
        """Of the operations that somebody is in: the first that not all ranks have begun, or the first that lasts."""
        for number in numbers:
            if self.behind(number):
                return number
        for number in numbers:
            if any(self.step.ranks[rank].seconds_since(self.of[rank][number].begin) >= WAIT_SECONDS for rank in self.waiting(number)):
                return number
        return numbers[-1] if numbers else None

    def answers(self, number):
        """What ranks have called as this number: operations by what has to be the same."""
        found = {}
        for rank, operations in self.of.items():
            if number in operations:
                found.setdefault(operations[number].same, []).append(rank)
        return found

    def is_in(self, operation):
        """Whether the rank is in it. Python's hooks do not tell how an operation ends: it has failed if a rank has not
        begun it, without which it cannot end well."""
        if operation.end and operation.state == UNKNOWN_END and operation.kind in MEETS:
            return bool(self.behind(operation.number))
        return operation.is_open

    def waiting(self, number):
        return [rank for rank, operations in self.of.items() if number in operations and self.is_in(operations[number])]

    def behind(self, number):
        return [rank for rank, last in self.last.items() if last < number]

    def since(self):
        """When the oldest wait began, and how long it has lasted."""
        waits = [(self.step.ranks[rank].real_of(self.of[rank][self.front].begin), rank) for rank in self.waiting(self.front)]
        time, rank = min(waits)
        return time, self.step.ranks[rank].seconds_since(self.of[rank][self.front].begin)

    def label(self):
        by = {"nccl": " (NCCL)", "python": " (Python)"}.get(self.writer, "")
        whose = "all ranks" if self.of_all else f"the group of {name_ranks(self.of)}"
        if not self.of_all and len(self.of) < self.size:
            whose += f", of {self.size}"
        return whose + (f", lane {self.lane}" if self.lane else "") + by


def sequences(step):
    found, messages = {}, []
    for rank, record in step.ranks.items():
        for operation in record.operations:
            if not operation.is_message:
                found.setdefault(operation.key, Sequence(operation.key, step)).add(rank, operation)
            elif operation.is_open:
                messages.append((rank, operation))
    for sequence in found.values():
        sequence.settle()
    return list(found.values()), messages


def lasts(record, operation):
    seconds = record.seconds_since(operation.begin)
    if operation.end:
        return f", which failed after {max(0.0, (operation.end - operation.begin) * 1e-9):.3g} s"
    return f" for {seconds:.3g} s"


def tell_doing(step, rank):
    record, said = step.ranks[rank], []
    if record.end and record.end != "code 0":
        said.append(f"its program ended with {record.end}")
    elif record.end:
        said.append("its program has ended")
    if record.is_stopped:
        said.append("it is stopped by a signal or a debugger")
    if record.doing:
        said.append(f"it was {record.doing}" if record.end else f"it is {record.doing}")
    if record.error:
        said.append(record.error)
    return "; ".join(said)


def tell_behind(sequence, rank):
    step, operations = sequence.step, sequence.of[rank]
    record = step.ranks[rank]
    said = f"rank {rank} on {record.node} has not begun it: "
    if operations:
        last = operations[sequence.last[rank]]
        ended = f", which ended {record.seconds_since(last.end):.3g} s before" if last.end else ""
        said += f"its last was {last.describe()} #{last.number}{last.at()}{ended}"
    else:
        said += "none of its last operations is of these ranks"
    doing = tell_doing(step, rank)
    return said + (f"; {doing}" if doing else "")


def tell_odd(sequence):
    """The ranks that called something else than most."""
    answers = sorted(sequence.answers(sequence.odd).values(), key=len)
    usual = answers.pop()
    first = sequence.of[usual[0]][sequence.odd]
    lines = []
    for ranks in answers:
        odd = sequence.of[ranks[0]][sequence.odd]
        what = "sizes differ" if odd.kind == first.kind and odd.count != first.count else (
            "roots differ" if odd.kind == first.kind and odd.peer != first.peer else
            "types differ" if odd.kind == first.kind and odd.type != first.type else "operations differ")
        lines.append(f"mismatch in #{sequence.odd} of {sequence.label()}: {name_ranks(ranks)} called {odd.describe()}"
                     f"{odd.at()}, where {name_ranks(usual)} called {first.describe()}{first.at()}; {what}")
    return lines


def tell_front(sequence):
    step, number = sequence.step, sequence.front
    waiting, lines, places = sequence.waiting(number), [], {}
    for rank in waiting:
        operation = sequence.of[rank][number]
        places.setdefault((operation.describe(), operation.where), []).append(rank)
    for ranks in places.values():
        operation, record = sequence.of[ranks[0]][number], step.ranks[ranks[0]]
        size = f"{operation.size()}, " if operation.size() else ""
        verb = "were" if operation.end else "wait" if len(ranks) > 1 else "waits"
        if operation.end and len(ranks) == 1:
            verb = "was"
        lines.append(f"{name_ranks(ranks)} {verb} in {operation.describe()} #{number} ({size}{sequence.label()})"
                     f"{operation.at()}{lasts(record, operation)}")
    behind = sorted(sequence.behind(number), key=lambda rank: (not step.ranks[rank].is_stopped, rank))
    for rank in behind[:SHOWN_MAX]:
        lines.append("  " + tell_behind(sequence, rank))
    if len(behind) > SHOWN_MAX:
        lines.append(f"  so have not {len(behind) - SHOWN_MAX} more: {name_ranks(behind[SHOWN_MAX:])}")
    if not behind and sequence.of_all and step.missing:
        lines.append(f"  there is no record of {name_ranks(step.missing)}")
    elif not behind and len(waiting) == len(sequence.of) and sequence.odd is None:
        lines.append("  all its ranks have begun it: the cause is in the operation itself, as a link or a device")
    ended = [rank for rank in waiting if step.ranks[rank].end]
    for rank in ended[:SHOWN_MAX]:
        if not step.ranks[rank].end.startswith("code 0"):
            lines.append(f"  rank {rank} on {step.ranks[rank].node}: {tell_doing(step, rank)}")
    return lines


def tell_ends(step):
    ends = {}
    for rank, end in sorted(step.ends.items()):
        ends.setdefault(end, []).append(rank)
    said = ", ".join(f"{name_ranks(ranks)} with {end}" for end, ranks in ends.items())
    return [f"after that the programs ended: {said}"] if said else []


def has_news(sequence):
    return sequence.odd is not None or sequence.front is not None


def is_repeated(sequence, others):
    """A backend of torch's on libddp: Python's hooks tell the same with the program's lines."""
    if sequence.writer == "python" or sequence.front is None:
        return False
    mine = (sorted(sequence.waiting(sequence.front)), sorted(sequence.behind(sequence.front)))
    return any(other.writer == "python" and other.front is not None and
               (sorted(other.waiting(other.front)), sorted(other.behind(other.front))) == mine for other in others)


def by_urgency(sequence):
    return (sequence.odd is None, sequence.since()[0] if sequence.front is not None else 0.0)


def verdict(step):
    """Sentences, and the sequence that matters most (or None)."""
    found, messages = sequences(step)
    urgent = sorted((sequence for sequence in found if has_news(sequence)), key=by_urgency)
    urgent = [sequence for sequence in urgent if not is_repeated(sequence, urgent)]
    lines = []
    for sequence in urgent[:SHOWN_MAX]:
        if sequence.odd is not None:
            lines += tell_odd(sequence)
        if sequence.front is not None and sequence.since()[1] < WAIT_SECONDS and not sequence.behind(sequence.front):
            continue  # all ranks are in it, and have just begun
        if sequence.front is not None:
            lines += tell_front(sequence)
    for rank, operation in sorted(messages, key=lambda found: found[1].begin)[:SHOWN_MAX]:
        record = step.ranks[rank]
        if record.seconds_since(operation.begin) >= WAIT_SECONDS or operation.end:
            lines.append(f"rank {rank} {'was' if operation.end else 'waits'} in {operation.describe()} "
                         f"(tag {operation.tag}){operation.at()}{lasts(record, operation)}")
    if not lines:
        lines.append("no rank waits in an operation")
        lines += [f"  rank {rank} on {step.ranks[rank].node}: {tell_doing(step, rank) or 'nothing is known of it'}"
                  for rank in sorted(step.ranks)[:4 * SHOWN_MAX]]
    lines += tell_ends(step)
    if step.missing:
        lines.append(f"no record of {name_ranks(step.missing)} was found: a node that is lost writes none")
    main = urgent[0] if urgent else max(found, key=lambda sequence: len(sequence.of), default=None)
    return lines, main


# ---- drawing -------------------------------------------------------------------------


def table(step, sequence):
    """Lines of text: what each rank has done of the last operations."""
    if sequence is None:
        return []
    last = sequence.odd if sequence.odd is not None else sequence.front
    last = last if last is not None else max(sequence.last.values())
    numbers = [number for number in range(last - TABLE_COLUMNS + 1, last + 1) if number > 0]
    head = ["rank", "node"] + [f"#{number}" for number in numbers]
    rows = [head]
    for rank in sorted(sequence.of):
        row = [str(rank), step.ranks[rank].node]
        for number in numbers:
            operation = sequence.of[rank].get(number)
            if operation is None:
                row.append("-" if number > sequence.last[rank] else "?")
            elif sequence.is_in(operation):
                row.append(f"{operation.kind} {'FAILED' if operation.end else 'WAITS'}")
            else:
                row.append(operation.kind)
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [f"the last operations of {sequence.label()} (-: not begun)"] + [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def timeline(step):
    """An SVG with a row for each rank: time goes to the right, and what has not ended is red."""
    begins = [record.real_of(operation.begin) for record in step.ranks.values() for operation in record.operations]
    if not begins:
        return ""
    first, last = min(begins), max(record.real * 1e-9 for record in step.ranks.values())
    # A wait of minutes would make the operations before it too small to be seen.
    busy = [record.real_of(operation.end) for record in step.ranks.values() for operation in record.operations if operation.end]
    last = min(last, (max(busy) if busy else first) + max(1e-3, (max(busy) - first) * .5 if busy else 1.0))
    span, height, drawn = max(last - first, 1e-6), 22, []
    for row, rank in enumerate(sorted(step.ranks)):
        record, y = step.ranks[rank], row * height
        drawn.append(f'<text x="0" y="{y + 14}">rank {rank} on {html.escape(record.node[:24])}</text>')
        for operation in record.operations:
            start = (record.real_of(operation.begin) - first) / span
            end = ((record.real_of(operation.end) if operation.end else last) - first) / span
            start, end = min(max(start, 0.0), 1.0), min(max(end, 0.0), 1.0)
            colour = "#d0342c" if operation.is_open else COLOURS.get(operation.kind, "#bbbbbb")
            title = html.escape(f"#{operation.number} {operation.describe()}{operation.at()}")
            drawn.append(f'<rect x="{180 + 820 * start:.2f}" y="{y + 3}" width="{max(820 * (end - start), 1.0):.2f}" '
                         f'height="{height - 6}" fill="{colour}"><title>{title}</title></rect>')
    return (f'<svg class="record" viewBox="0 0 1000 {len(step.ranks) * height}" role="img" aria-label="operations of each rank" '
            f'style="height:auto" font-size="11" fill="currentColor">{"".join(drawn)}</svg>'
            f"<p>The last {span:.3g} s. Red: it has not ended, or has failed.</p>")


def page(title, lines, drawn, step, style):
    threads = "".join(f"<details><summary>rank {rank} on {html.escape(record.node)} ({html.escape(record.reason)})</summary>"
                      f"<pre>{html.escape(record.threads)}</pre></details>" for rank, record in sorted(step.threads.items()))
    said = "\n".join(html.escape(line) for line in lines)
    rows = "\n".join(html.escape(line) for line in drawn)
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title><style>{style}'
            "pre { overflow-x: auto; } svg.record rect { shape-rendering: auto; }</style></head>\n"
            f"<body><h1>{html.escape(title)}</h1><pre>{said}</pre><h2>Operations</h2><pre>{rows}</pre>{timeline(step)}"
            f"{'<h2>Threads</h2>' + threads if threads else ''}\n</body></html>\n")


def report(folder, output, tools):
    """Prints the verdict and writes the page. `tools` are ddp-report's: Refused, warn, shown, write_file, STYLE."""
    found = find_folder(Path(folder))
    if found is None:
        raise tools.Refused(f"{folder} has no records (rank-N.jsonl, of srun --ddp=record={folder})")
    step = read(found, tools.warn)
    if step is None:
        raise tools.Refused(f"{found} has no record that can be read")
    lines, main = verdict(step)
    drawn = table(step, main)
    reasons = ", ".join(sorted({record.reason for record in step.ranks.values()}))
    title = f"step {found.resolve().name}: {len(step.ranks)} of {step.world_size} ranks ({reasons})"
    if step.generation:
        title += f", generation {step.generation}"
    print("\n".join(tools.shown(line) for line in [title, ""] + lines + [""] + drawn))
    target = Path(output or found / "record.html")
    tools.write_file(target, [page(title, lines, drawn, step, tools.STYLE)])
    print(f"\n{tools.shown(target)}")
