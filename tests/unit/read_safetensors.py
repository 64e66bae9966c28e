#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An independent reader of safetensors: prints each tensor and its numbers."""
import json
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


with open(sys.argv[1], "rb") as file:
    content = file.read()
length, = struct.unpack("<Q", content[:8])
raw = content[8:8 + length]
header = json.loads(raw)
metadata = header.pop("__metadata__")
data = content[8 + length:]
assert raw.startswith(b"{") and (8 + length) % 8 == 0

at = raw.index(b'"crc32c":"') + len(b'"crc32c":"')
assert crc32c(raw[:at] + b"00000000" + raw[at + 8:]) == int(metadata["crc32c"], 16)
end = 0
for name, about in header.items():
    first, last = about["data_offsets"]
    assert first == end and about["dtype"] == "F32"
    end = last
    piece = data[first:last]
    assert crc32c(piece) == int(metadata["crc32c." + name], 16)
    numbers = struct.unpack("<%df" % (len(piece) // 4), piece)
    print(name, about["shape"], *("%g" % number for number in numbers))
assert end == len(data)
print({key: value for key, value in metadata.items() if not key.startswith("crc32c")})
