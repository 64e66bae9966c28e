# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and rates as people read and write them; all-reduces as a table for people and as JSON for programs; and
what machine this is."""

import os
import platform
import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def parse_size(text):
    """'25M', '64KiB' or '4' in bytes."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", text.strip().lower())
    if not match:
        raise ValueError(f"'{text}' is not a size such as 4, 64K or 25M")
    size = int(match[1]) * {"": 1, "k": KIB, "m": MIB, "g": GIB}[match[2]]
    if size < 4 or size % 4:
        raise ValueError(f"{size} bytes are not a whole number of f32 values")
    return size


def size_text(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def time_text(seconds):
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"


def parse_rate(text):
    """'1gbit' in bits per second, as tc reads it; 'none' is no limit: None."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text)
    if not match:
        raise ValueError(f"'{text}' is not a rate such as 1gbit or 100mbit, nor none")
    return float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


COLUMNS = (
    ("size", 8), ("contender", 24), ("median us", 11), ("min us", 11), ("p25 us", 11),
    ("p75 us", 11), ("alg GB/s", 9), ("bus GB/s", 9), ("vs ddp", 8),
)


def cell(number):
    return f"{number:.3f}" if number < 100 else f"{number:.0f}"


def row(values):
    return "  ".join(
        f"{value:<{width}}" if name == "contender" else f"{value:>{width}}"
        for value, (name, width) in zip(values, COLUMNS)
    )


def heading():
    return row([name for name, _ in COLUMNS])


def rows(points):
    """The lines of one size's points; `vs ddp` is the time over ours, and * a buffer that is rewritten."""
    ours = next((point.median for point in points if point.contender == "ddp"), None)
    for point in points:
        yield row(
            [size_text(point.size) + ("*" if point.rewritten else ""), point.contender]
            + [cell(point.seconds[key] * 1e6) for key in ("median", "min", "p25", "p75")]
            + [f"{point.algorithm_bandwidth / 1e9:.3g}", f"{point.bus_bandwidth / 1e9:.3g}"]
            + [f"{point.median / ours:.2f}x" if ours else "-"]
        )


# What decides how fast sums and products are, most of all those of 16 bits.
ISA = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile", "asimd", "bf16", "sve")


def machine():
    told = {}
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            told = {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in cpuinfo)}
    except OSError:
        pass
    flags = told.get("flags", told.get("Features", "")).split()
    return {
        "cpu": told.get("model name", platform.processor()),
        "isa": [flag for flag in ISA if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_at_start": os.getloadavg()[0],
    }


def to_entry(point):
    return {
        "place": point.place,
        "ranks": point.ranks,
        "nodes": point.nodes,
        "contender": point.contender,
        "bytes": point.size,
        "rewritten": point.rewritten,
        "seconds": point.seconds,
        "round_medians_seconds": point.round_medians,
        "samples": point.samples,
        "algorithm_bytes_per_second": point.algorithm_bandwidth,
        "bus_bytes_per_second": point.bus_bandwidth,
    }
