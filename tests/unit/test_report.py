#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""ddp-report: the page and the merged trace of a training of four ranks on two nodes."""
import html.parser
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests/support"))
from checks import check, finish


def run(*arguments):
    return subprocess.run([sys.executable, SOURCE / "libruntime/watch/ddp-report", *map(str, arguments)],
                          capture_output=True, text=True, timeout=60, check=False)


STEPS, CLOCK_OF_N1 = 10, 7000.0  # microseconds that n1's clock is ahead


def write_trace(folder, rank, closed, **start):
    """Steps of 10 ms, which end together. Rank 3 computes 8 ms of them, the others 4."""
    node, compute = f"n{rank // 2}", 8000.0 if rank == 3 else 4000.0
    ahead = CLOCK_OF_N1 if rank >= 2 else 0.0
    events = [{"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank} on {node}", **start}}]
    for step in range(1, STEPS + 1):
        start = 1e15 + 1e4 * step + ahead
        for name, tid, begin, duration in (("forward", 0, 0, compute / 2), ("backward", 0, compute / 2, compute / 2),
                                           ("wait", 0, compute, 9000 - compute), ("totals", 1, compute, 9000 - compute)):
            events.append({"name": name, "ph": "X", "pid": rank, "tid": tid, "ts": start + begin, "dur": duration,
                           "args": {"step": step}})
    text = "[\n" + ",\n".join(map(json.dumps, events)) + ("\n]\n" if closed else "")
    (folder / f"rank-{rank}.json").write_text(text)


def write_metrics(folder, steps, loss):
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as lines:
        for step in steps:
            print(json.dumps({"step": step, "loss": loss(step), "weight": 100, "units_per_second": 1e4, "seconds": .01,
                              "forward_seconds": .002, "backward_seconds": .002, "exposed_seconds": .005,
                              "evaluation_seconds": .0006, "other_seconds": .0004, "grad_norm": None, "learning_rate": 1e-3}), file=lines)


class Wellformed(html.parser.HTMLParser):
    """That what opens closes, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass


with tempfile.TemporaryDirectory() as name:
    work = Path(name)
    run_of = work / "<run & of>"
    run_of.mkdir()
    for rank in range(4):
        write_trace(run_of, rank, closed=rank != 1)
    write_metrics(run_of, range(1, 8), lambda step: 9.0)
    write_metrics(run_of, range(5, STEPS + 1), lambda step: 5.0 - step / 10)  # resumed at step 5
    with open(run_of / "metrics.jsonl", "a", encoding="utf-8") as end:
        end.write('{"step": Infinity}\n{"step": 11, "lo')

    done = run(run_of, "--merge", work / "all.json")
    text = (run_of / "report.html").read_text(encoding="utf-8")
    check("a page is made", done.returncode == 0, done.stderr)
    check("its name is told", f"{run_of}/report.html" in done.stdout, done.stdout)
    check("half a line of metrics is told", "2 lines of" in done.stderr, done.stderr)
    page = Wellformed()
    page.feed(text)
    check("what the page opens it closes", not page.open and not page.wrong, (page.open, page.wrong))
    check("it needs no other file", not page.links and "url(" not in text, page.links)
    check("a folder's name is no markup", "&lt;run &amp; of&gt;" in text and "<run" not in text, text[:500])
    check("the steps are told", "1 to 10" in text, text)
    check("of a step told twice the later line counts", "9 → 4" in text, re.findall("<dd>.*?</dd>", text))
    check("exposed communication is half of the time", "50.0 %" in text, re.findall("<dd>.*?</dd>", text))
    check("evaluation and the rest are parts of a step's time", "evaluation 0.6 ms" in text and "other 0.4 ms" in text,
          re.findall("<span>.*?</span>", text))
    check("ranks and nodes are counted", "4 on 2 nodes" in text, re.findall("<dd>.*?</dd>", text))
    check("the slowest rank is named", "Slowest: rank 3 on n1" in text and "2.00 times" in text, text[-3000:])
    check("in all steps", "slowest in 10 of 10 steps" in text, text[-3000:])
    check("clocks are compared", "n1 +7 ms" in text, text[-3000:])
    check("a quantity that was never finite has no chart", "Norm of the gradient" not in text, text)

    loss = text[text.index("<h2>Loss"):text.index("<h2>Units")]
    labels = re.findall(r'<span style="top:([0-9.]+)%">([^<]*)</span>', loss)
    check("an axis has round numbers", labels == [("100.00", "4"), ("66.67", "6"), ("33.33", "8"), ("0.00", "10")], labels)
    drawn = [float(point.split(",")[1]) for point in re.search('points="([^"]*)"', loss)[1].split()]
    check("what is drawn lies where they say", len(drawn) == STEPS and abs(drawn[0] - 100 / 6) < .1 and abs(drawn[-1] - 100) < .1, drawn)

    merged = json.loads((work / "all.json").read_text())
    ends = {}
    for event in merged:
        if event["name"] == "totals":
            ends.setdefault(event["args"]["step"], []).append(event["ts"] + event["dur"])
    check("the merged trace has all ranks' steps", len(ends) == STEPS and all(len(one) == 4 for one in ends.values()), ends)
    check("and one clock", all(max(one) - min(one) < 1 for one in ends.values()), ends)

    single = work / "single"
    single.mkdir()
    (single / "metrics.jsonl").write_text('{"step": 7, "loss": 2.5, "units_per_second": 0, "seconds": 0, "grad_norm": Infinity}\n')
    done = run(single)
    check("a single step of zeroes has a page", done.returncode == 0 and "7 to 7" in (single / "report.html").read_text(), done.stderr)

    flat = work / "flat"
    flat.mkdir()
    write_metrics(flat, range(1, 3), lambda step: 6876.517825196293 if step == 1 else 6876.517825196294)
    done = run(flat)
    check("so have losses that differ by their last bit", done.returncode == 0 and "<h2>Loss" in (flat / "report.html").read_text(),
          done.stderr)

    mixed = work / "mixed"
    mixed.mkdir()
    write_metrics(mixed, range(1, 30), lambda step: 9.0)
    write_metrics(mixed, range(1, 11), lambda step: 5.0)  # a run anew, where the file could not be set aside
    write_metrics(mixed, range(8, 10), lambda step: 3.0)
    run(mixed)
    text = (mixed / "report.html").read_text(encoding="utf-8")
    check("of steps that begin again, what came before is left out", "1 to 9" in text and "5 → 3" in text, text[:3000])

    fewer = work / "fewer"  # a training on four ranks goes on with two
    fewer.mkdir()
    for rank in range(4):
        write_trace(fewer, rank, closed=True, world_size=4 if rank >= 2 else 2, start=1000 if rank >= 2 else 2000)
    write_metrics(fewer, range(1, STEPS + 1), lambda step: 1.0)
    done = run(fewer)
    check("ranks of an earlier part are not counted", "2 on 1 node" in (fewer / "report.html").read_text(), done.stderr)
    check("which is told", "the latest run has 2 ranks; traces of ranks from 2 on" in done.stderr, done.stderr)

    restarted = work / "restarted"  # at step 6, with ranks 2 and 3 on another node, whose clock is 3 ms ahead
    restarted.mkdir()
    for rank in range(4):
        write_trace(restarted, rank, closed=False, start=1000)
        before = (restarted / f"rank-{rank}.json").read_text()
        write_trace(restarted, rank, closed=True, start=2000)
        after = json.loads((restarted / f"rank-{rank}.json").read_text())
        after.insert(1, {"name": "checkpoint", "ph": "X", "pid": rank, "tid": 0, "ts": 2e15, "dur": 1, "args": {"step": 1}})
        after = [event for event in after if event["ph"] == "M" or event["ts"] == 2e15 or event["args"]["step"] >= 6]
        for event in after if rank >= 2 else []:
            if event["ph"] == "M":
                event["args"]["name"] = f"rank {rank} on n2"
            else:
                event["ts"] += 3000 - CLOCK_OF_N1
        (restarted / f"rank-{rank}.json").write_text(before + "".join(",\n" + json.dumps(event) for event in after) + "\n]\n")
    write_metrics(restarted, range(1, 8), lambda step: 9.0)
    write_metrics(restarted, range(6, STEPS + 1), lambda step: 2.0)
    done = run(restarted, "--merge", work / "restarted.json")
    text = (restarted / "report.html").read_text(encoding="utf-8")
    check("a step that a restart repeats counts once", "takes 2.00 times" in text and "slowest in 10 of 10 steps" in
          text.replace("it was the slowest in", "slowest in"), text[-3000:])
    check("the starts are counted", "<dt>starts of the program</dt><dd>2</dd>" in text, text[:6000])
    check("each node has its own clock", "n1 +7 ms, n2 +3 ms" in text, text[-3000:])
    ends = {}
    for event in json.loads((work / "restarted.json").read_text()):
        if event["name"] == "totals" and event["args"]["step"] < 6:
            ends.setdefault(event["args"]["step"], []).append(event["ts"] + event["dur"])
    check("also for steps before the restart", all(max(one) - min(one) < 1 for one in ends.values()) and len(ends) == 5, ends)

    other = Path(os.fsdecode(os.fsencode(work) + b"/caf\xe9"))
    other.mkdir()
    write_metrics(other, range(1, 3), lambda step: 1.0)
    done = run(other, "--merge", other / "all.json")
    check("a folder whose name is no UTF-8 has a page", "Traceback" not in done.stderr and (other / "report.html").is_file() and
          "caf\\xe9/metrics.jsonl" in (other / "report.html").read_text(encoding="utf-8") and "caf\\xe9/report.html" in done.stdout,
          (done.stdout, done.stderr))
    check("and its errors", done.returncode == 1 and "caf\\xe9 has no traces to merge" in done.stderr, done.stderr)

    beside = work / "beside"  # flight records go to the folder of the metrics, and are newer
    (beside / "12.0").mkdir(parents=True)
    write_metrics(beside, range(1, STEPS + 1), lambda step: 5.0)
    (beside / "12.0" / "rank-3.jsonl").write_text('{"format":"slurm-ddp record","version":1,"reason":"stall","job":12,"step":0}\n')
    os.utime(beside / "12.0" / "rank-3.jsonl", (2e9, 2e9))
    done = run(beside)
    text = (beside / "report.html").read_text(encoding="utf-8")
    check("a flight record is no metrics file", "1 to 10" in text and not done.stderr, (done.stderr, text[3000:4000]))

    words = work / "words"  # of a program that writes other values
    words.mkdir()
    (words / "metrics.jsonl").write_text('{"step": "1", "loss": "low", "seconds": "12", "weight": null}\n'
                                         '{"step": 2, "loss": 2.5, "seconds": 3, "weight": [1], "exposed_seconds": true}\n')
    (words / "rank-0.json").write_text('[\n{"name": "forward", "ph": "X", "args": [1]},\n{"name": "wait", "dur": "long", "args": {}},\n'
                                       '{"name": "totals", "ph": "X", "args": {"step": 1}}\n]\n')
    done = run(words)
    check("values that are no numbers are left out", done.returncode == 0 and "Traceback" not in done.stderr and
          "1 to 2" in (words / "report.html").read_text(), done.stderr)
    check("and lines that are no events", done.stderr.count("has a line that is no event") == 3, done.stderr)

    (work / "empty").mkdir()
    done = run(work / "empty")
    check("a folder without a run is refused", done.returncode == 1 and "has no step in metrics" in done.stderr, done.stderr)
    done = run(work / "nowhere")
    check("so is none", done.returncode == 1 and "there is no folder" in done.stderr, done.stderr)
    again = run_of / "again"
    again.mkdir()
    write_trace(again, 2, closed=True)
    done = run(run_of)
    check("two runs' traces are not one", done.returncode == 1 and "several traces of rank 2" in done.stderr, done.stderr)

VICTIM, ATTACKER, SECRET = 54321, 54322, "all that the victim has\n"


def attack(what, plant, *arguments, refused=True, words="is a link of"):
    """The victim makes a page in a folder to which everybody may write, after another user was there."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        work.chmod(0o755)
        shared, home, script = work / "shared", work / "home", work / "ddp-report"
        shared.mkdir()
        shared.chmod(0o1777)
        home.mkdir()
        (home / "file").write_text(SECRET)
        shutil.copy(SOURCE / "libruntime/watch/ddp-report", script)
        write_metrics(shared, range(1, 3), lambda step: 1.0)
        write_trace(shared, 0, closed=True)
        for path in (home, home / "file"):
            os.chown(path, VICTIM, VICTIM)
        link = plant(shared, home)
        command = [script, shared, *(str(one).replace("SHARED", str(shared)) for one in arguments)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                                  check=False, user=VICTIM, group=VICTIM, extra_groups=[])
        except subprocess.TimeoutExpired:
            check(f"{what}: it does not hang", False, command)
            return
        check(f"{what}: the victim's file is as it was", (home / "file").read_text() == SECRET, (home / "file").read_text()[:60])
        if refused:
            check(f"{what}: it is refused by name", done.returncode == 1 and
                  f"{link} {words} another user (uid {ATTACKER})" in done.stderr, (done.returncode, done.stderr))
        else:
            check(f"{what}: the page is made", done.returncode == 0 and (shared / "report.html").stat().st_uid == VICTIM,
                  done.stderr)


def planted(name, target, owner=ATTACKER):
    def plant(shared, home):
        (shared / name).symlink_to(home / target)
        os.chown(shared / name, owner, owner, follow_symlinks=False)
        return shared / name
    return plant


def pipes(shared, _):
    for name in ("z.jsonl", "rank-7.json"):
        os.mkfifo(shared / name)
        os.utime(shared / name, (2e9, 2e9))


def pipe_with_reader(shared, _):
    """Whoever writes to it finds a reader, and does not wait for it."""
    pipe = shared / "report.html"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    os.chown(pipe, ATTACKER, ATTACKER)
    os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    return pipe


def link_to_descriptor(mode):
    """As in /dev of a container, where root's links seem to belong to another user. Behind it is /dev/null."""
    def plant(shared, _):
        (shared / "dev").mkdir()
        (shared / "dev").chmod(mode)
        (shared / "dev/null").symlink_to("/proc/self/fd/0")
        os.chown(shared / "dev/null", ATTACKER, ATTACKER, follow_symlinks=False)
        return shared / "dev/null"
    return plant


if os.geteuid() == 0:
    attack("a link in the page's place", planted("report.html", "file"))
    attack("a link at the old name of an unfinished page", planted("report.html.new", "file"), refused=False)
    attack("a link in the merged trace's place", planted("all.json", "file"), "--merge", "SHARED/all.json")
    attack("a link on the way", planted("out", ""), "--output", "SHARED/out/page.html")
    attack("a link of the user's own", planted("report.html", "page.html", VICTIM), refused=False)
    attack("a pipe in the page's place", pipe_with_reader, words="belongs to")
    attack("a link to a descriptor where others may write", link_to_descriptor(0o775), "--merge", "SHARED/dev/null")
    attack("a link to a descriptor in a container", link_to_descriptor(0o755), "--merge", "SHARED/dev/null", refused=False)
    attack("pipes in the place of metrics and traces", pipes, refused=False)

with tempfile.TemporaryDirectory() as name:
    work = Path(name)
    write_metrics(work, range(1, 3), lambda step: 1.0)
    write_trace(work, 0, closed=True)
    (work / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout, which an error here shall not replace
    done = run(work, "--output", work / "stdout")
    check("a page goes to standard output", done.returncode == 0 and "</html>" in done.stdout, done.stderr)
    with open(work / "out", "w", encoding="utf-8") as out:
        command = [sys.executable, SOURCE / "libruntime/watch/ddp-report", work, "--output", work / "stdout"]
        subprocess.run(command, stdout=out, timeout=60, check=False)
    check("also where that is a file", "</html>" in (work / "out").read_text(), (work / "out").read_text()[:60])
    check("and the link stays", (work / "stdout").is_symlink(), os.listdir(work))
    os.mkfifo(work / "pipe")
    done = run(work, "--merge", work / "pipe")
    check("a pipe that nobody reads is an error", done.returncode == 1 and str(work / "pipe") in done.stderr, done.stderr)
    done = run(work, "--output", work)
    check("so is a folder", done.returncode == 1 and str(work) in done.stderr, done.stderr)

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("report", str(SOURCE / "libruntime/watch/ddp-report"))
report = importlib.util.module_from_spec(importlib.util.spec_from_loader("report", loader))
loader.exec_module(report)
is_in_place = report.is_in_place


def write_as_it_is_swapped(swap):
    """The page is written to a pipe, in whose place another user puts something after the look at it."""
    def look_and_swap(path):
        found = is_in_place(path)
        os.unlink(path)
        swap(work / "treasure", path)
        return found

    os.mkfifo(work / "pipe")
    (work / "treasure").write_text(SECRET)
    report.is_in_place = look_and_swap
    try:
        report.write_file(work / "pipe", ["page"])
        return "written"
    except (OSError, report.Refused) as reason:
        return str(reason)
    finally:
        report.is_in_place = is_in_place


for what, swap, words in (("link", os.symlink, "symbolic link"), ("hard link", os.link, "no pipe or device any more")):
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve()
        told = write_as_it_is_swapped(swap)
        check(f"a pipe that becomes a {what} is not written to", (work / "treasure").read_text() == SECRET,
              (work / "treasure").read_text())
        check(f"a pipe that becomes a {what} is refused by name", words in told and str(work / "pipe") in told, told)

version = ".".join(re.findall(r"define DDP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)",
                              (SOURCE / "libruntime/include/ddp/version.h").read_text()))
check("it tells the package's version", run("--version").stdout == f"ddp-report {version}\n", run("--version").stdout)
finish()
