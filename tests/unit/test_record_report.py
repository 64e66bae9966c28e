#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""ddp-report --record: flight records of ranks are merged, and the verdict names who is where."""
import html.parser
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests/support"))
from checks import check, finish

sys.path.insert(0, str(SOURCE / "libruntime/watch"))
import ddp_record

COLUMNS = ["number", "group", "lane", "kind", "type", "count", "op", "peer", "tag", "ranks", "flags", "begin_ns", "end_ns",
           "state", "where"]
NOW, SECOND = 1000 * 10**9, 10**9


def operation(number, kind="all_reduce", **more):
    """One that began `number` seconds before the present, counted from 100, and took 0.1 s; an open one has end_ns 0."""
    begin = NOW - (100 - number) * SECOND
    found = {"number": number, "group": "7", "lane": 0, "kind": kind, "type": "f32", "count": 1000,
             "op": "sum" if kind == "all_reduce" else "", "peer": -1 if kind != "broadcast" else 0, "tag": 0, "ranks": 4,
             "flags": 1, "begin_ns": begin, "end_ns": begin + SECOND // 10, "state": 0, "where": ""}
    found.update(more)
    return [found[name] for name in COLUMNS]


def record(rank, operations, writer="libddp", **more):
    found = {"format": "slurm-ddp record", "version": 1, "reason": "stall", "job": 12, "step": 0, "generation": 0, "rank": rank,
             "world_size": 4, "node": f"n{rank // 2}", "pid": 100 + rank, "now_ns": NOW, "real_ns": 10**18, "end": "",
             "doing": "in forward of step 5", "error": "", "phase": "forward", "training_step": 5, "columns": COLUMNS,
             "rings": [{"writer": writer, "pid": 1, "closed": False, "operations": operations}], "threads": ""}
    found.update(more)
    return found


def verdict(*records):
    step = ddp_record.Step([ddp_record.Record(json.dumps(found)) for found in records])
    lines, main = ddp_record.verdict(step)
    return "\n".join(lines), step, main


def says(name, told, *wanted):
    for words in wanted:
        check(f"{name}: {words[:60]}", words in told, told)


DONE = [operation(number, where="train.py:88") for number in range(90, 98)]
WAITS = DONE + [operation(98, count=6553600, end_ns=0, where="train.py:90")]

# ---- a rank that does not come ---------------------------------------------------------

told, step, main = verdict(*(record(rank, WAITS) for rank in range(3)), record(3, DONE))
says("a rank hangs", told, "ranks 0-2 wait in all_reduce f32[6553600] sum #98 (25 MiB, all ranks) at train.py:90 for 2 s",
     "rank 3 on n1 has not begun it: its last was all_reduce f32[1000] sum #97 at train.py:88, which ended 2.9 s before; "
     "it is in forward of step 5")
check("and nothing else", len(told.splitlines()) == 2, told)
drawn = ddp_record.table(step, main)
check("the table has a row for each rank", len(drawn) == 6 and drawn[-1].split()[-1] == "-" and "WAITS" in drawn[2], "\n".join(drawn))

told, _, _ = verdict(*(record(rank, WAITS) for rank in range(3)), record(3, DONE, end="signal 9"))
says("a rank was killed", told, "rank 3 on n1 has not begun it", "its program ended with signal 9; it was in forward")

failed = DONE + [operation(98, end_ns=NOW - SECOND, state=9)]
told, _, _ = verdict(*(record(rank, failed, end="code 1") for rank in range(3)), record(3, DONE, end="signal 11"))
says("the others have failed, too", told, "ranks 0-2 were in all_reduce f32[1000] sum #98 (3.906 KiB, all ranks), which failed after 1 s",
     "rank 3 on n1 has not begun it")

told, _, _ = verdict(*(record(rank, WAITS) for rank in range(3)))
says("a rank has no record", told, "ranks 0-2 wait in", "there is no record of rank 3", "a node that is lost writes none")

told, _, _ = verdict(*(record(rank, WAITS) for rank in range(4)))
says("all ranks are in it", told, "ranks 0-3 wait in", "all its ranks have begun it")

told, _, _ = verdict(*(record(rank, WAITS) for rank in range(3)), record(3, []))
says("a rank has done nothing", told, "rank 3 on n1 has not begun it: none of its last operations is of these ranks")

# ---- ranks that differ -----------------------------------------------------------------

told, _, _ = verdict(*(record(rank, WAITS) for rank in (0, 2, 3)),
                     record(1, DONE + [operation(98, "broadcast", count=10, end_ns=0, where="train.py:12")]))
says("a rank broadcasts", told, "mismatch in #98 of all ranks: rank 1 called broadcast f32[10] root 0 at train.py:12, where ranks "
     "0, 2-3 called all_reduce f32[6553600] sum at train.py:90; operations differ")
told, _, _ = verdict(*(record(rank, WAITS) for rank in (0, 2, 3)), record(1, DONE + [operation(98, count=10, end_ns=0)]))
says("a rank reduces less", told, "rank 1 called all_reduce f32[10] sum, where ranks 0, 2-3 called all_reduce f32[6553600] sum "
     "at train.py:90; sizes differ")
roots = [operation(98, "broadcast", peer=rank // 3, end_ns=0) for rank in range(4)]
told, _, _ = verdict(*(record(rank, [roots[rank]]) for rank in range(4)))
says("roots differ", told, "rank 3 called broadcast f32[1000] root 1, where ranks 0-2 called broadcast f32[1000] root 0; roots differ")
uneven = [operation(98, "all_to_all", count=rank) for rank in range(4)]
told, _, _ = verdict(*(record(rank, [uneven[rank]]) for rank in range(4)))
check("blocks of all_to_all may differ", "mismatch" not in told, told)

# ---- groups, lanes, messages, writers ----------------------------------------------------

group = {"group": "abc", "ranks": 2, "flags": 0}
told, _, _ = verdict(record(0, DONE + [operation(3, begin_ns=NOW - 5 * SECOND, end_ns=0, **group)]), record(1, DONE),
                     record(2, DONE + [operation(2, **group)]), record(3, DONE))
says("a group's rank hangs", told, "rank 0 waits in all_reduce f32[1000] sum #3 (3.906 KiB, the group of ranks 0, 2) for 5 s",
     "rank 2 on n1 has not begun it: its last was all_reduce f32[1000] sum #2")
told, _, _ = verdict(record(0, [operation(5, end_ns=0, lane=2)]), *(record(rank, [operation(4, lane=2)]) for rank in (1, 2, 3)))
says("a lane", told, "(3.906 KiB, all ranks, lane 2)")
told, _, _ = verdict(*(record(rank, DONE) for rank in (0, 1, 3)),
                     record(2, DONE + [operation(0, "recv", begin_ns=NOW - 9 * SECOND, end_ns=0, op="", peer=1, tag=5)]))
says("a message", told, "rank 2 waits in recv f32[1000] from 1 (tag 5) for 9 s")
told, _, _ = verdict(*(record(rank, WAITS, "nccl") for rank in range(3)), record(3, DONE, "nccl"))
says("NCCL", told, "(25 MiB, all ranks (NCCL))")
both = [{"writer": "python", "pid": 1, "closed": False, "operations": WAITS},
        {"writer": "libddp", "pid": 1, "closed": False, "operations": [operation(200, group="9", begin_ns=NOW - SECOND * 2, end_ns=0)]}]
short = [{"writer": "python", "pid": 1, "closed": False, "operations": DONE},
         {"writer": "libddp", "pid": 1, "closed": False, "operations": [operation(199, group="9")]}]
told, _, _ = verdict(*(record(rank, [], rings=both) for rank in range(3)), record(3, [], rings=short))
check("what Python's hooks tell is not told again by libddp's ring", "#98" in told and "#200" not in told, told)
told, _, _ = verdict(*(record(rank, DONE) for rank in range(4)))
says("nobody waits", told, "no rank waits in an operation", "rank 3 on n1: it is in forward of step 5")
moves = DONE + [operation(98, begin_ns=NOW - SECOND // 100, end_ns=0)]
told, _, _ = verdict(*(record(rank, moves) for rank in range(4)))
check("an operation that all ranks have just begun is no wait", "no rank waits" in told, told)

ended = DONE + [operation(98, end_ns=NOW - SECOND, state=255)]
told, _, _ = verdict(*(record(rank, ended, "python") for rank in range(3)), record(3, DONE, "python", end="signal 9"))
says("operations whose end is not known have failed where a rank lacks", told,
     "ranks 0-2 were in all_reduce f32[1000] sum #98 (3.906 KiB, all ranks (Python)), which failed after 1 s",
     "rank 3 on n1 has not begun it")
told, _, _ = verdict(*(record(rank, ended, "python") for rank in range(4)))
check("and have ended well where none lacks", "no rank waits" in told, told)
lazy = DONE + [operation(number, begin_ns=NOW - SECOND // 20, end_ns=0) for number in (98, 99)]
told, _, _ = verdict(*(record(rank, lazy + [operation(100, begin_ns=NOW - SECOND // 50, end_ns=0)], "python") for rank in range(3)),
                     record(3, lazy, "python", end="signal 9"))
says("operations whose end was not seen yet hide no other", told, "ranks 0-2 wait in all_reduce f32[1000] sum #100",
     "rank 3 on n1 has not begun it: its last was all_reduce f32[1000] sum #99")

# ---- several records ----------------------------------------------------------------------

told, step, _ = verdict(*(record(rank, WAITS, reason="failure", threads="thread 1", real_ns=10**18 - 5) for rank in range(4)),
                        *(record(rank, DONE, reason="end") for rank in range(4)))
check("the last record counts", "no rank waits" in told, told)
check("the threads are those of the last record that has them", step.threads[2].threads == "thread 1", step.threads)
told, step, _ = verdict(*(record(rank, WAITS, generation=1, real_ns=10**18 - 5) for rank in range(4)),
                        *(record(rank, DONE, generation=2) for rank in range(2)))
check("records of an earlier generation are left out", step.generation == 2 and sorted(step.ranks) == [0, 1], step.ranks)

# ---- a stall, and what came of it -----------------------------------------------------------

LATER = {"now_ns": NOW + 3 * SECOND, "real_ns": 10**18 + 3 * SECOND}
STOPPED = "thread 5 (train) is stopped in do_signal_stop\nthread 6 (train) is stopped in do_signal_stop\n"
stalls = [record(0, WAITS), record(1, WAITS), record(2, DONE, threads=STOPPED),
          record(3, DONE, threads="thread 5 (train) sleeps in futex_wait\n")]


def ends(operations=tuple(WAITS), done=tuple(DONE), **more):
    """The records that come when the stall has been answered: all programs have ended."""
    return [record(rank, list(operations if rank < 2 else done), reason="end", end="signal 9", **LATER, **more) for rank in range(4)]


told, step, _ = verdict(*stalls, *ends())
says("stall-action=kill", told, "ranks 0-1 wait in all_reduce f32[6553600] sum #98 (25 MiB, all ranks) at train.py:90 for 2 s",
     "rank 2 on n1 has not begun it: its last was all_reduce f32[1000] sum #97 at train.py:88, which ended 2.9 s before; "
     "it is stopped by a signal or a debugger; it is in forward of step 5",
     "rank 3 on n1 has not begun it: its last was all_reduce f32[1000] sum #97 at train.py:88, which ended 2.9 s before; it is in "
     "forward", "after that the programs ended: ranks 0-3 with signal 9")
check("it was a stall", {found.reason for found in step.ranks.values()} == {"stall"}, told)
check("the end that came of it is no cause", "its program ended" not in told, told)
failed = DONE + [operation(98, count=6553600, end_ns=NOW + SECOND, state=9, where="train.py:90")]
told, _, _ = verdict(*stalls, *ends(failed))
says("operations that the end has made fail", told, "ranks 0-1 wait in all_reduce f32[6553600] sum #98", "it is stopped by a signal")
told, _, _ = verdict(*stalls[::-1], record(2, DONE, reason="failure", end="signal 11", **LATER),
                     *(record(rank, WAITS, reason="failure", end="code 1", **LATER) for rank in range(2)))
says("some ranks have ended", told, "it is stopped by a signal", "after that the programs ended: ranks 0-1 with code 1, rank 2 with signal 11")
on = DONE + [operation(98, count=6553600, end_ns=NOW + SECOND), operation(99, begin_ns=NOW + SECOND, end_ns=0)]
told, _, _ = verdict(*stalls, *ends(on, on[:-1]))
says("a stall that is over is no cause", told, "rank 2 on n1 has not begun it: its last was all_reduce f32[6553600] sum #98",
     "its program ended with signal 9")
known = DONE + [operation(98, count=6553600, end_ns=NOW + SECOND, state=255)]
told, _, _ = verdict(*stalls, *ends(known + [operation(99, begin_ns=NOW + SECOND, end_ns=NOW + 2 * SECOND, state=255)], known))
check("nor one after which Python's operations have gone on", "after that" not in told, told)
told, step, _ = verdict(*stalls, *(record(rank, WAITS, reason="asked", **LATER) for rank in range(4)))
check("ddp-status --dump tells of the present", {found.reason for found in step.ranks.values()} == {"asked"}, told)
told, _, _ = verdict(*(record(rank, WAITS) for rank in range(2)), record(2, DONE), record(3, DONE, threads=STOPPED))
behind = [line.split()[1] for line in told.splitlines() if "has not begun" in line]
check("a stopped rank is the first that is told", behind == ["3", "2"], told)

# ---- the program --------------------------------------------------------------------------


class Wellformed(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def run(*arguments):
    return subprocess.run([sys.executable, SOURCE / "libruntime/watch/ddp-report", *map(str, arguments)],
                          capture_output=True, text=True, timeout=60, check=False)


with tempfile.TemporaryDirectory() as name:
    folder = Path(name) / "12.0"
    folder.mkdir()
    for rank in range(4):
        line = json.dumps(record(rank, WAITS if rank < 3 else DONE, threads="thread 5 (a<b>) sleeps"))
        (folder / f"rank-{rank}.jsonl").write_text(line + "\n" + ("half a li" if rank == 1 else ""))
    found = run("--record", name)
    says("the program finds the step", found.stdout, "step 12.0: 4 of 4 ranks (stall)", "rank 3 on n1 has not begun it",
         f"{folder}/record.html")
    check("it leaves out what is no record, and says so", found.returncode == 0 and "line 2 of" in found.stderr and
          "is left out: it is no JSON" in found.stderr, found.stderr)
    page = (folder / "record.html").read_text()
    parser = Wellformed()
    parser.feed(page)
    check("the page is well formed", not parser.wrong and not parser.open, (parser.wrong, parser.open))
    check("the page has the timeline and the threads", "<svg" in page and "a&lt;b&gt;" in page and "<b>" not in page, page)
    found = run("--record", folder, "-o", Path(name) / "page.html")
    check("a step's folder and a page's name may be given", found.returncode == 0 and (Path(name) / "page.html").exists(), found.stderr)
    found = run("--record", folder, "--merge", Path(name) / "trace.json")
    check("--merge, which merges traces, is refused beside it", found.returncode == 2 and "--merge" in found.stderr and
          not (Path(name) / "trace.json").exists(), found.stderr)
    (Path(name) / "empty").mkdir()
    found = run("--record", Path(name) / "empty")
    check("a folder without records is refused in words", found.returncode == 1 and "has no records" in found.stderr, found.stderr)
    for rank in range(4):
        (folder / f"rank-{rank}.jsonl").write_text(json.dumps(record(rank, [], version=2)) + "\n")
    found = run("--record", folder)
    check("records of another version are refused in words", found.returncode == 1 and "version 2" in found.stderr, found.stderr)


# ---- damaged records ----------------------------------------------------------------------

ODD = (None, True, -1, 1 << 70, 1.5, "", "x" * 70, [], {}, [[]], "\x1b[2J", float("nan"))


def damage(value, chance):
    """The same with some parts of it replaced."""
    if chance.random() < .04:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {key: damage(item, chance) for key, item in value.items() if chance.random() > .01}
    if isinstance(value, list):
        return [damage(item, chance) for item in value if chance.random() > .01]
    return value


def survives(seed):
    """Whether any damage gives a verdict, or a word on the line, and nothing that a terminal would take for a command."""
    chance, found = random.Random(seed), []
    for rank in range(4):
        line = json.dumps(damage(record(rank, WAITS if rank < 3 else DONE), chance) if chance.random() < .8
                          else record(rank, damage(WAITS, chance)))
        if chance.random() < .1:
            line = line[:chance.randrange(len(line))]
        try:
            found.append(ddp_record.Record(line))
        except ddp_record.Broken:
            pass
    if not found:
        return True
    step = ddp_record.Step(found)
    lines, main = ddp_record.verdict(step)
    text = "\n".join(lines + ddp_record.table(step, main)) + ddp_record.page("t", lines, [], step, "")
    return "\x1b" not in text


bad = []
for seed in range(1500):
    try:
        if not survives(seed):
            bad.append(f"seed {seed}: a control sign")
    except Exception as reason:  # any is a defect
        bad.append(f"seed {seed}: {type(reason).__name__}: {reason}")
check("1,500 damaged steps give verdicts or words", not bad, "\n".join(bad[:5]))

# ---- which step ------------------------------------------------------------------------

with tempfile.TemporaryDirectory() as name:
    for number, (step, time) in enumerate((("12.0", 3000), ("12.1", 2000))):
        folder = Path(name) / step
        folder.mkdir()
        (folder / "rank-0.jsonl").write_text(json.dumps(record(0, DONE)) + "\n")
        os.utime(folder / "rank-0.jsonl", (time, time))
        os.utime(folder, (1000 + number, 1000 + number))
    found = ddp_record.find_folder(Path(name))
    check("the step with the newest record is told, also if the record was added to a file", found.name == "12.0", found)
finish()
