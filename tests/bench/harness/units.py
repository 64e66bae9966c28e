# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and rates as people read and write them."""

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
