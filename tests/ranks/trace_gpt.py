#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: asan; all: unit tsan
"""The traces of examples/gpt on the fake GPU: what its queue and communication did, and the summary's figures of it."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "tests/support"))
from checks import check, finish

RANKS, STEPS, PASSES = 2, 6, 2
DEVICE, ROUNDED = 3, 2.0  # the row; microseconds of a trace


def train(work, *arguments):
    """The summary, and each rank's events."""
    text = work / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    folder = Path(tempfile.mkdtemp(dir=work))
    done = subprocess.run(
        [os.environ.get("GPT", "examples/gpt/gpt"), "--data", text, "--layers", "2", "--heads", "2", "--width", "32", "--length",
         "32", "--batch", "4", "--steps", str(STEPS), "--accumulate", str(PASSES), "--bucket-mb", "0.02", "--shard", "none",
         "--spawn", str(RANKS), "--trace", folder, "--json", *arguments],
        capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | dict.fromkeys(
            ("DDP_CUDA_MODULE", "DDP_CUDA_KERNELS", "DDP_NCCL"), os.path.abspath("tests/device/.libs/libddp_fake_gpu.so")))
    check("gpt " + " ".join(arguments) + " trains", done.returncode == 0, done.stderr)
    if done.returncode != 0:
        finish()
    return folder, json.loads(done.stdout), [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


def ranges(events, step, chosen):
    """Begin and end in microseconds of those that are chosen, in order of the file."""
    return [(event["ts"], event["ts"] + event["dur"]) for event in events
            if event["ph"] == "X" and event["args"]["step"] == step and chosen(event)]


def named(*names):
    return lambda event: event["name"] in names


def is_communication(event):
    return event["tid"] > DEVICE


def covered(spans):
    """Microseconds that at least one of them covers."""
    total, end = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def rows(events):
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def in_order(events, step):
    """forward, backward, forward, backward, update; each begins when the one before it has ended."""
    seen = [event["name"] for event in events if event["ph"] == "X" and event["tid"] == DEVICE and event["args"]["step"] == step]
    spans = ranges(events, step, lambda event: event["tid"] == DEVICE)
    return seen == ["device forward", "device backward"] * PASSES + ["device update"] and \
        all(a[1] <= b[0] + ROUNDED for a, b in zip(spans, spans[1:]))


def within(events, step):
    """On the device, what computes begins behind the host's word for it, and ends before the host knows the loss."""
    host = ranges(events, step, named("forward", "backward"))
    device = ranges(events, step, named("device forward", "device backward"))
    return host[0][0] - ROUNDED <= device[0][0] and device[-1][1] <= host[-1][1] + ROUNDED


def overlaps(events, step):
    """Buckets that were under way while the device was still in the step's last backward pass."""
    start, end = ranges(events, step, named("device backward"))[-1]
    return [span for span in ranges(events, step, lambda event: event["name"].startswith("bucket ")) if start < span[0] < end]


steps = range(1, STEPS + 1)
with tempfile.TemporaryDirectory() as name:
    work = Path(name)
    folder, summary, traces = train(work, "--device", "cuda")
    for rank, events in enumerate(traces):
        check(f"rank {rank}'s trace has a row of the device, and communication has others",
              rows(events).get(DEVICE) == "device" and rows(events).get(DEVICE + 1) == "communication 1" and
              all(event["pid"] == rank for event in events), rows(events))
        check("which tells forward, backward and update of each step in order", all(in_order(events, step) for step in steps), events)
        check("within the step", all(within(events, step) for step in steps), events)
        check("and that buckets travel while backward goes on", any(overlaps(events, step) for step in steps), events)

    waited = sum(end - start for step in steps for start, end in ranges(traces[0], step, named("wait"))) * 1e-6
    took = sum(covered(ranges(traces[0], step, is_communication)) for step in steps) * 1e-6
    apart = 1e-6 * ROUNDED * len(traces[0])
    for phase in "forward", "backward":
        shown = sum(end - start for step in steps for start, end in ranges(traces[0], step, named(f"device {phase}"))) * 1e-6
        check(f"{phase} took what the trace shows of the device", abs(summary[f"{phase}_seconds"] - shown) < apart,
              (summary, shown))
    told = summary["exposed_seconds"], summary["communication_seconds"], summary["overlap_ratio"]
    check("exposed communication is what the trace shows", abs(told[0] - waited) < apart, (told, waited))
    check("so is all of it", abs(told[1] - took) < apart, (told, took))
    check("and how much overlaps", took > 0 and abs(told[2] - max(0, 1 - waited / took)) < 2 * apart / took, (told, waited, took))

    merged = work / "merged.json"
    done = subprocess.run([sys.executable, SOURCE / "libruntime/watch/ddp-report", folder, "--merge", merged],
                          capture_output=True, text=True, timeout=60, check=False)
    events = json.loads(merged.read_text()) if done.returncode == 0 else []
    check("ranks' traces are merged whole", len(events) == sum(map(len, traces)) and
          all(any(event["pid"] == rank and event["name"] == "device backward" for event in events) for rank in range(RANKS)),
          (done, len(events)))

    _, _, traces = train(work)
    check("a host has no such row", all(DEVICE not in rows(events) for events in traces), traces)
finish()
