#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""ddp-status --node: figures of a process that looks like a rank, as text for Prometheus and as JSON. promtool, if there
is one, and a check of the grammar read the text."""
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests/support"))
from checks import check, finish

TOOL = Path("spank/status/ddp-status").resolve()
NOBODY = 65534  # a user whose tasks need no process of Slurm's
JOB = "2000000099"
MAGIC, NODE_MAGIC, PAGE = 0x31706464, 0x6E706464, 4096


def as_nobody():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def tool(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False,
                          preexec_fn=as_nobody, cwd="/")


def page():
    """A rank's page, which libddp writes, and the node's own behind it."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    slot = struct.pack("<IIqQiiQ64s240sQQIIIIQQddIIqIIQ64sII", MAGIC, 2, 7, now, 0, 3, 41, b"all_reduce f32[10] sum", b"", 1750000000, 6, 0, 0,
                       1, 0, now, 41, 0.5, 64, 0, 0, 250, 0, 0, 0, b"", 0, 1 + 125000)
    assert len(slot) == PAGE // 8
    return slot.ljust(PAGE, b"\0") + struct.pack("<III", NODE_MAGIC, 60, 2).ljust(PAGE, b"\0")


def start_rank():
    file = os.memfd_create("ddp_progress", 0)
    os.write(file, page())
    if os.geteuid() == 0:
        os.fchown(file, NOBODY, NOBODY)
    return subprocess.Popen(["sleep", "600"], pass_fds=[file], preexec_fn=as_nobody, cwd="/", env={
        "SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
        "DDP_PROGRESS_FD": str(file), "TORCHELASTIC_RESTART_COUNT": "1", "DDP_RESTART_COUNT": "0",
        "SLURM_JOB_PARTITION": 'gpu"\nx 1', "PATH": os.environ["PATH"]})


NAME = r"[a-z][a-z0-9_]*"
LABEL = rf'{NAME}="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)")


def problems(text):
    """What is wrong with a text in Prometheus' format: each figure has help and type before it, and comes once."""
    found, types, told, helped = [], {}, set(), set()
    if text and not text.endswith("\n"):
        found.append("the last line has no end")
    for line in text.splitlines():
        if match := re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line):
            found += [f"help twice: {line}"] * (match[1] in helped)
            helped.add(match[1])
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (gauge|counter)", line):
            found += [f"type twice, or without help: {line}"] * (match[1] in types or match[1] not in helped)
            found += [f"name and type differ: {line}"] * ((match[2] == "counter") != match[1].endswith("_total"))
            types[match[1]] = match[2]
        elif match := SAMPLE.fullmatch(line):
            found += [f"no type: {line}"] * (match[1] not in types or match[1] != list(types)[-1])
            key = (match[1], match[2])
            found += [f"twice: {line}"] * (key in told)
            told.add(key)
        else:
            found.append(f"no such line: {line}")
    return found


rank = start_rank()
try:
    deadline = time.monotonic() + 60
    while True:
        ran = tool("--node", "--format", "prometheus", "--interval", "0.05", JOB)
        if "rank_step{" in ran.stdout or time.monotonic() > deadline:
            break
    text = ran.stdout
    check("ddp-status --node finds the rank", ran.returncode == 0 and "slurm_ddp_rank_step{" in text, text + ran.stderr)
    check("its figures are in Prometheus' format", not problems(text), problems(text))
    for name, value in (("rank_step", "7"), ("rank_steps_per_second", "2"), ("rank_samples_per_second", "128"),
                        ("rank_exposed_communication_ratio", "0.125"), ("rank_planned_steps", "250"), ("rank_waiting", "1"),
                        ("rank_compute_seconds_total", "1.75"), ("rank_compute_steps_total", "6"),
                        ("rank_restarts_total", "1"), ("step_requeues_total", "0"), ("step_stalls_total", "2"), ("step_ranks", "1")):
        check(f"{name} is what the page says", re.search(rf'^slurm_ddp_{name}{{jobid="{JOB}",stepid="3",.*}} {value}$', text, re.M), text)
    since = re.search(r"^slurm_ddp_rank_last_progress_timestamp_seconds{.*} ([0-9.]+)$", text, re.M)
    check("the last progress is told as a time", since and 0 <= time.time() - float(since[1]) < 600, text)
    check("a user's text forges no line", r'partition="gpu\"?x 1"' in text, text)

    promtool = shutil.which(os.environ.get("PROMTOOL", "promtool"))
    if promtool is None:
        print("# promtool is not there (apt-get install prometheus): the check of the grammar is all")
        check("promtool finds no fault # SKIP no promtool", True)
    else:
        linted = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=300, check=False)
        check("promtool finds no fault", linted.returncode == 0 and not linted.stderr, linted.stdout + linted.stderr)

    ran = tool("--node", "--format", "json", "--interval", "0.05", JOB + ".3")
    told = json.loads(ran.stdout)
    check("there is JSON of a schema with a number", told["schema"] == 1 and told["job"] is None and len(told["ranks"]) == 1, ran.stdout)
    wanted = {"job": int(JOB), "slurm_step": 3, "rank": 0, "step": 7, "stalls": 2, "restarts": 1, "requeues": 0, "exposed_ratio": 0.125, "compute_steps": 6,
              "partition": 'gpu"?x 1', "loss": None}
    check("with the same figures", wanted.items() <= told["ranks"][0].items(), ran.stdout)
    manual = (SOURCE / "doc/ddp-status.1").read_text().replace("\\-", "-")
    check("the manual names all members", not [name for name in told["ranks"][0] if not re.search(rf"\b{name}\b", manual)],
          [name for name in told["ranks"][0] if not re.search(rf"\b{name}\b", manual)])
    names = re.findall(r'^\t\[[A-Z_]+\] = \{ "([a-z_]+)", "(?:gauge|counter)"', (SOURCE / "spank/status/prometheus.c").read_text(), re.M)
    check("and all figures", len(names) > 15 and not [name for name in names if f"slurm_ddp_{name}" not in manual],
          [name for name in names if f"slurm_ddp_{name}" not in manual])
    dashboard = json.loads((SOURCE / "slurm/monitoring/slurm-ddp-dashboard.json").read_text())
    rules = (SOURCE / "slurm/monitoring/slurm-ddp.rules.yml").read_text()
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    known = {f"slurm_ddp_{name}" for name in names} | {"node_textfile_mtime_seconds", "slurm_ddp_node_ranks"}
    unknown = set(re.findall(r"\b(?:slurm_ddp|node)_[a-z_]+", " ".join(asked) + rules.replace("slurm_ddp.prom", ""))) - known
    check("dashboard and alerts ask for figures that are there", len(asked) > 20 and not unknown - {"slurm_ddp"}, unknown)
    unseen = [name for name in names if not any(f"slurm_ddp_{name}" in text for text in asked)]
    check("the dashboard shows all but the time of a phase", unseen == ["rank_phase_start_timestamp_seconds"], unseen)
    def labels_of(query):
        """The labels of a query's result; what is not aggregated has those of a rank."""
        grouped = None if re.search(r"\b(?:top|bottom)k\b", query) else re.search(r"\bby \(([a-z, ]*)\)", query)
        return re.findall("[a-z]+", grouped[1]) if grouped else ["jobid", "stepid", "rank", "node", "user", "partition"]

    empty = [(panel["title"], label) for panel in dashboard["panels"] for target in panel["targets"]
             for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
             if label not in labels_of(target["expr"])]
    check("the legends name labels that the queries leave", not empty, empty)
    tables = [panel for panel in dashboard["panels"] if panel["type"] == "table"]
    renamed = [step["options"]["renameByName"] for panel in tables for step in panel["transformations"] if step["id"] == "organize"]
    check("a table is of one moment, and each of its columns has a name", len(tables) == len(renamed) and not [
        (panel["title"], target["refId"]) for panel, names in zip(tables, renamed) for target in panel["targets"]
        if not (target.get("instant") and target.get("format") == "table" and f"Value #{target['refId']}" in names)])
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard)))
    check("each variable is defined and used", defined == used, (defined, used))
    if promtool is not None:
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "dashboard.yml"
            queries = [text.replace("$jobid", ".*").replace("$user", ".*") for text in asked if not text.startswith("label_values")]
            written.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": [
                {"record": f"panel:{i}", "expr": text} for i, text in enumerate(queries)]}]}))
            for name, file in (("the dashboard's queries", written), ("the alerts", SOURCE / "slurm/monitoring/slurm-ddp.rules.yml")):
                linted = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, timeout=300, check=False)
                check(f"promtool reads {name}", linted.returncode == 0, linted.stdout + linted.stderr)

    ran = tool("--node", "--interval", "0.05", JOB)
    check("the table shows the rank", f"step {JOB}.3: 1 ranks, 1 waiting" in ran.stdout, ran.stdout + ran.stderr)

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        file = Path(folder) / "slurm_ddp.prom"
        ran = tool("--textfile", file, "--interval", "0.05")
        check("--textfile writes a file that all may read", ran.returncode == 0 and file.stat().st_mode & 0o777 == 0o644, ran.stderr)
        check("with figures of all jobs", f'jobid="{JOB}"' in file.read_text() and not problems(file.read_text()), file.read_text())
        check("and leaves no other file", os.listdir(folder) == [file.name], os.listdir(folder))
        before = file.read_text()
        ran = subprocess.run([TOOL, "--textfile", file, "--interval", "0.05"], capture_output=True, text=True, timeout=300, check=False,
                             restore_signals=False, cwd="/", preexec_fn=lambda: (resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)), as_nobody()))
        check("if there is no room for the figures, it says so", ran.returncode == 1 and f"cannot write {file}: File too large" in ran.stderr,
              (ran.returncode, ran.stderr))
        check("and the old ones stay", file.read_text() == before and os.listdir(folder) == [file.name], os.listdir(folder))
finally:
    rank.kill()
    rank.wait()

# What the units say, by systemd's own reading; tests/cluster/monitoring_units.sh runs them.
if shutil.which("systemd-analyze") is None:
    check("systemd reads the units # SKIP no systemd-analyze", True)
else:
    with tempfile.TemporaryDirectory() as folder:
        unit = Path("slurm/monitoring/slurm-ddp-status.service").read_text()
        command = re.search(r"^ExecStart=(\S+/bin/ddp-status) --textfile ", unit, re.M)
        check("the unit names the installed ddp-status", command is not None and "@" not in command[1], unit)
        # It is not installed yet, which systemd would say.
        (Path(folder) / "slurm-ddp-status.service").write_text(unit.replace(command[1], str(TOOL)))
        shutil.copy(SOURCE / "slurm/monitoring/slurm-ddp-status.timer", folder)
        ran = subprocess.run(["systemd-analyze", "verify", "--man=no", *Path(folder).iterdir()], capture_output=True, text=True, timeout=300, check=False)
        told = [line for line in (ran.stdout + ran.stderr).splitlines() if "slurm-ddp-status" in line]
        check("systemd reads the units", not told, ran.stdout + ran.stderr)

ran = tool("--node", "--format", "prometheus", JOB)
check("a node without ranks is nothing unusual", ran.returncode == 0 and 'slurm_ddp_node_ranks{node=' in ran.stdout, ran.stdout + ran.stderr)
for words in (["--format", "xml", "1"], ["--textfile", "x", "--format", "json"], ["--node", "--stack"], ["--format"], ["--node", "1", "2"]):
    ran = tool(*words)
    check(f"{' '.join(words)} is a usage error", ran.returncode == 2, ran.stderr)
finish()
