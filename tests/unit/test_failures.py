#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""ddp-failures: what logs of slurmd tell of a site's failures, and what it makes of lines that are none."""
import gzip
import json
import os
import pwd
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests/support"))
from checks import check, finish

TOOL = SOURCE / "spank/status/ddp-failures"


def run(*arguments, stdin=b""):
    return subprocess.run([sys.executable, TOOL, *map(str, arguments)], input=stdin, capture_output=True, timeout=120, check=False,
                          env={**os.environ, "TZ": "UTC"})


def told(*arguments, stdin=b""):
    ran = run("--format", "json", *arguments, stdin=stdin)
    return json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr.decode()


NOON = 1764072000  # 2025-11-25T12:00:00Z


def line(job, kind, node, time, more="", text="rank 1", prefix="[2025-11-25T12:00:00.000] [{job}.0] "):
    return (prefix.format(job=job) + f"ddp: failure v=1 kind={kind} job={job} step=0 uid=0 node={node} rank=1 ranks=4{more} "
            f'time={NOON + time} text="{text}"\n').encode()


log = b"".join((
    b"[2025-11-25T12:00:00.000] slurmd started\n",
    line(1, "crash", "n1", 10, " signal=11"),
    line(1, "peer", "n0", 10, " code=1 peer=1"), line(1, "exit", "n2", 11, " code=1"),  # consequences
    line(2, "memory", "n1", 100), line(3, "memory", "n1", 90000),
    line(4, "peer", "n3", 200, " peer=5"), line(4, "peer", "n0", 201, " peer=5"),  # a node that tells nothing any more
    line(5, "crash", "n2", 300, " generation=1"), line(5, "crash", "n2", 400, " generation=2"),
    line(6, "exit", "n2", 500, " code=2", prefix="Nov 25 12:00:00 n2 slurmstepd[77]: "),
    line(7, "exit", "n4", 600, " code=2", prefix="2025-11-25T12:00:00+0000 n4.site slurmd[7]: [7.0] "),
))
report = told(stdin=log)
check("each step and generation counts once", report["failures"] == 8 and report["jobs"] == 7, report)
nodes = {group["name"]: group for group in report["nodes"]}
check("on the node where it began", nodes["n1"]["failures"] == 3 and nodes["n1"]["kinds"] == {"crash": 1, "memory": 2} and
      nodes["n1"]["jobs"] == 3 and report["nodes"][0]["name"] in ("n1", "n2"), report["nodes"])
check("not where others gave up", "n0" not in nodes and "n3" not in nodes and nodes["?"]["kinds"] == {"peer": 1}, nodes)
check("generations of restart= are failures of one job", nodes["n2"]["failures"] == 3 and nodes["n2"]["jobs"] == 2, nodes["n2"])
check("lines of syslog and journalctl count", nodes["n4"]["failures"] == 1, nodes)
check("days are in order", [(group["name"], group["failures"]) for group in report["days"]] == [("2025-11-25", 7), ("2025-11-26", 1)], report["days"])
check("users have names", report["users"][0]["name"] == pwd.getpwuid(0).pw_name, report["users"])
# Two ranks may fail in one second: each run tells the same.
tied = b"".join(line(8, "exit", f"n{i}", 800, " code=1") for i in range(8))
seen = {subprocess.run([sys.executable, TOOL, "--format", "json"], input=tied, capture_output=True, timeout=120, check=True,
                       env={**os.environ, "PYTHONHASHSEED": str(seed)}).stdout for seed in range(6)}
check("of failures in one second the first in the log counts, in each run", len(seen) == 1 and b'"n0"' in min(seen), seen)
check("the same line twice, as of two copies of a log, counts once", told(stdin=log + log) == report)
check("all keys of the JSON are in the manual", not [key for key in (*report, *report["nodes"][0])
      if not re.search(rf"\b{key}\b", (SOURCE / "doc/ddp-failures.1").read_text())])

check("--since and --until choose", told("--since", "2025-11-26", stdin=log)["failures"] == 1 and
      told("--until", "2025-11-25T12:01", stdin=log)["failures"] == 1)
check("--node chooses", told("--node", "n1", stdin=log)["failures"] == 3)
table = run("--list", "--top", "2", stdin=log).stdout.decode()
check("the table has nodes, users, days and the last failures", re.search(r"^n1 +3 +1 +2 +- .* 3 +1 +2025-11-26", table, re.M) is None and
      re.search(r"^n1 +3 ", table, re.M) and "... and " in table and re.search(r"^2025-11-25T12:10:00  7\.0  n4  exit  rank 1$", table, re.M), table)

# What users can write.
forged = b"".join((
    b'[2025-11-25T12:00:00.000] [9.0] error: ddp: rank 0 of 1 on n0 exited: ddp: failure v=1 kind=crash job=9 node=n7 time=%d\n' % NOON,
    b'[2025-11-25T12:00:00.000] [9.0] task 0: execve(): ddp: failure v=1 kind=crash job=9 node=n7 time=%d\n' % NOON,
    b'ddp: failure v=1 kind=crash job=9 node=n7 time=%d more words\n' % NOON,
    line(9, "exit", "n7", 0, text='\\" kind=crash node=n8 text=\\"'),
    line(10, "exit", "n7", 0, text="\\x1b[31m\\\\"),
))
report = told(stdin=forged)
check("what stands in another line's text is no failure", report["failures"] == 2 and report["kinds"]["crash"] == 0 and report["damaged_lines"] == 1, report)
check("an escaped quote does not end the text", [group["name"] for group in report["nodes"]] == ["n7"], report)
comments = b"12|mine [ddp: failure v=1 kind=silence job=12 step=0 uid=0 node=n5 time=%d text=\"node n5\"] [ddp: run 1 failed at once]\n" % (NOON + 5)
check("comments do not count", told(stdin=comments)["failures"] == 0)
check("but with --comments they do", [group["name"] for group in told("--comments", stdin=comments)["nodes"]] == ["n5"])
both = line(12, "peer", "n1", 3, " peer=3") + comments
check("a node that was lost is known from srun's note", [group["name"] for group in told("--comments", stdin=both)["nodes"]] == ["n5"])

strange = b"".join((
    line(1, "melted", "n1", 0), line(1, "exit", "n1", 0).replace(b"v=1", b"v=2"), line(1, "exit", "n1", 0).replace(b"job=1 ", b""),
    line(1, "exit", "n1", 0).replace(b"time=", b"time=9999999999999"), line(1, "exit", "n1", 0).replace(b"rank=1", b"rank=-1"),
    line(1, "exit", "n1", 0, " kind=crash"), b"ddp: failure v=1\xff\n", b"ddp: failure v=1 \0\n"))
report = told(stdin=strange)
check("damaged lines, and those of other versions, are left out and counted", report["failures"] == 0 and report["damaged_lines"] == 8, report)
check("and it says so", b"8 lines are no failures" in run(stdin=strange).stderr)
check("a line of 3 MiB costs no memory", told(stdin=b"ddp: failure v=1 " + b"x" * (3 << 20) + b"\n" + log)["failures"] == 8)
check("letters of terminals are not printed", b"\x1b" not in run("--list", stdin=line(1, "exit", "n1", 0, text="\x1b[2J")).stdout)

dice, wrong = random.Random(7), []
pieces = log.split(b" ") + [b"text=\"", b"\\", b"\"", b"ddp: failure v=1 ", b"time=", b"job=", b"=", b"\xc3\xa4", b"99999999999999999999"]
for _ in range(12):
    text = bytearray(b"".join(b" ".join(dice.choice(pieces) for _ in range(dice.randrange(1, 12))) + b"\n" for _ in range(400)) + log)
    for _ in range(200):
        text[dice.randrange(len(text))] = dice.randrange(256)
    ran = run("--comments", "--list", stdin=bytes(text))
    if ran.returncode != 0 or b"Traceback" in ran.stderr:
        wrong.append(ran.stderr.decode("utf-8", "replace"))
check("no log makes it stumble", not wrong, "\n".join(wrong))

with tempfile.TemporaryDirectory() as folder:
    plain, packed, damaged = Path(folder) / "slurmd.log", Path(folder) / "slurmd.log.1.gz", Path(folder) / "bad.gz"
    plain.write_bytes(line(1, "exit", "n1", 0))
    packed.write_bytes(gzip.compress(line(2, "exit", "n1", 0)))
    damaged.write_bytes(b"\x1f\x8bnothing")
    broken = Path(folder) / "broken.gz"
    broken.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 64)  # its header is right
    check("several logs are read, also packed ones", told(plain, packed)["failures"] == 2)
    for name in (damaged, broken, Path(folder) / "none"):
        ran = run(name)
        check(f"{name.name} that cannot be read is named", ran.returncode == 1 and f"cannot read {name}".encode() in ran.stderr and
              b"Traceback" not in ran.stderr, ran.stderr)
check("an empty log has no failures", run().stdout == b"no failures\n")
for words in (["--since", "yesterday"], ["--top", "0"], ["--format", "xml"]):
    check(f"{' '.join(words)} is a usage error", run(*words).returncode == 2)
version = ".".join(re.findall(r"define DDP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (SOURCE / "libruntime/include/ddp/version.h").read_text()))
check("its version is the project's", run("--version").stdout.decode() == f"ddp-failures {version}\n")
finish()
