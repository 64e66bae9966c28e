# SPDX-License-Identifier: Apache-2.0
"""All-reduces as a table for people and as JSON for programs; and what machine this is."""

import os
import platform

from .units import size_text

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
