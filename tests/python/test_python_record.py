#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""slurm_ddp's flight recorder: the layout of watch/record.h, the ring's order, and the program's line."""
import os
import shutil
import struct
import subprocess
import tempfile
import types
import unittest
from pathlib import Path

from support import SOURCE, PageTest, main, page

from slurm_ddp import group_hooks, record  # noqa: E402  # pylint: disable=wrong-import-position,wrong-import-order

OFFSETS = r"""
#include <stddef.h>
#include <stdio.h>
#include "watch/record.h"
#include "ddp.h"
#define AT(field) printf("%s %zu\n", #field, offsetof(struct ddp_record_entry, field));
#define NUMBER(name, value) printf("= %s %ld\n", name, (long)(value));
int main(void)
{
	FIELDS
	NUMBER("MAGIC", DDP_RECORD_MAGIC) NUMBER("VERSION", DDP_RECORD_VERSION) NUMBER("ENTRIES", DDP_RECORD_ENTRIES)
	NUMBER("ENTRY_BYTES", DDP_RECORD_ENTRY_BYTES) NUMBER("HEADS_BYTES", DDP_RECORD_HEADS_BYTES)
	NUMBER("AREA_BYTES", DDP_RECORD_AREA_BYTES) NUMBER("PLACE_BYTES", DDP_RECORD_PLACE_BYTES)
	NUMBER("NAMED", DDP_RECORD_NAMED) NUMBER("UNKNOWN_END", DDP_RECORD_UNKNOWN_END) NUMBER("OF_ALL", DDP_RECORD_OF_ALL)
	NUMBER("whole", DDP_RECORD_FILE_BYTES(3)) NUMBER("head", sizeof(struct ddp_record_head))
	NUMBER("next", offsetof(struct ddp_record_head, next))
	NUMBER("all_reduce", DDP_ALL_REDUCE) NUMBER("reduce", DDP_REDUCE) NUMBER("broadcast", DDP_BROADCAST)
	NUMBER("reduce_scatter", DDP_REDUCE_SCATTER) NUMBER("all_gather", DDP_ALL_GATHER) NUMBER("gather", DDP_GATHER)
	NUMBER("scatter", DDP_SCATTER) NUMBER("all_to_all", DDP_ALL_TO_ALL) NUMBER("send", DDP_SEND) NUMBER("recv", DDP_RECV)
	NUMBER("barrier", DDP_BARRIER) NUMBER("float32", DDP_F32) NUMBER("float64", DDP_F64) NUMBER("float16", DDP_F16)
	NUMBER("bfloat16", DDP_BF16) NUMBER("int32", DDP_I32) NUMBER("int64", DDP_I64) NUMBER("uint8", DDP_U8)
	NUMBER("int8", DDP_I8) NUMBER("bool", DDP_BOOL)
	return 0;
}
"""
compiler = shutil.which(os.environ.get("CC", "cc").split()[-1])


class Layout(unittest.TestCase):
    @unittest.skipUnless(compiler, "there is no C compiler")
    def test_layout_is_the_headers(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, "offsets.c"), Path(folder, "offsets")
            source.write_text(OFFSETS.replace("FIELDS", " ".join(f"AT({field})" for field in record.OFFSETS)))
            subprocess.run([compiler, f"-I{SOURCE}/libruntime", f"-I{SOURCE}/libruntime/include", "-o", program, source],
                           check=True)
            lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
        others = {"whole": 3 * (page.PAGE_BYTES + record.AREA_BYTES) + page.PAGE_BYTES, "head": 64, "next": 8}
        others.update({name: number for names in (record.KINDS, record.TYPES) for number, name in enumerate(names)})
        for line in lines:
            words = line.split()
            if words[0] == "=":
                self.assertEqual(int(words[2]), others.get(words[1], getattr(record, words[1], None)), words[1])
            else:
                self.assertEqual(int(words[1]), record.OFFSETS[words[0]], words[0])
        self.assertEqual(len(lines), len(record.OFFSETS) + 33)
        self.assertEqual(record._ENTRY.size, record.ENTRY_BYTES)


class Tensor:
    device, dtype, shape = types.SimpleNamespace(type="cpu"), "torch.float32", (4, 2)

    def numel(self):
        return 8


class Group:
    def __init__(self, name, size):
        self.group_name, self.count = name, size

    def size(self):
        return self.count


class Work:
    done = False

    def is_completed(self):
        return self.done


class Recording(PageTest):
    """What the hooks of a group write, without torch."""

    def setUp(self):
        super().setUp()
        os.ftruncate(self.page.descriptor, 2 * (page.PAGE_BYTES + record.AREA_BYTES) + page.PAGE_BYTES)
        os.pwrite(self.page.descriptor, struct.pack("=III", record.MAGIC, record.VERSION, 2),
                  2 * (page.PAGE_BYTES + record.AREA_BYTES) + page.PAGE_BYTES - record.PLACE_BYTES)
        self.before = dict(os.environ)
        os.environ.update({name: str(value) for name, value in self.page.variables().items()})
        page._slot, page._tried, record._ring = None, False, None
        group_hooks._pid = os.getpid()
        page.open_slot()
        self.addCleanup(self.restore)

    def restore(self):
        page._slot, page._tried, record._ring, group_hooks._pid = None, False, None, 0
        group_hooks._pending.clear()
        os.environ.clear()
        os.environ.update(self.before)

    def issue(self, group, number, name="ALLREDUCE", done=False):
        work = Work()
        work.done = done
        arguments = types.SimpleNamespace(name=name, op_id=number, input_tensors=[Tensor()], output_tensors=[], work=work)
        group_hooks._before(group, True, arguments)
        group_hooks._after(group, arguments)
        return work

    def entries(self):
        area = 2 * page.PAGE_BYTES + record.AREA_BYTES
        data = os.pread(self.page.descriptor, record.RING_BYTES, area + record.HEADS_BYTES + 7 * record.RING_BYTES)
        found = []
        for at in range(0, record.RING_BYTES, record.ENTRY_BYTES):
            sequence, = struct.unpack_from("=Q", data, at)
            if sequence:
                found.append(record._ENTRY.unpack_from(data, at))
        return sorted(found)

    def test_hooks_record_operations_with_the_programs_line(self):
        self.assertIsNotNone(record.open_ring())
        world, pair = group_hooks._Group(Group("0", 2), True), group_hooks._Group(Group("pair", 2), False)
        slow = self.issue(world, 1)
        self.issue(pair, 2, "BROADCAST", done=True)
        self.issue(world, 3, "odd_thing")
        first, second, third = self.entries()
        self.assertEqual((first[0], first[1], first[3]), (1, 1, 8))
        self.assertEqual((first[8], first[9], first[12]), (0, 0, record.OF_ALL))
        self.assertGreater(first[4], 0)
        self.assertEqual(first[5], 0)
        self.assertRegex(first[16].rstrip(b"\0").decode(), r"^test_python_record\.py:\d+$")
        self.assertEqual((second[1], second[8], second[13]), (1, 2, record.UNKNOWN_END))
        self.assertGreater(second[5], 0)
        self.assertNotEqual(first[2], second[2])
        self.assertEqual((third[1], third[8], third[15].rstrip(b"\0")), (2, record.NAMED, b"odd_thing float32"))
        # The thread sees the end, also of one behind another that lasts.
        slow.done = True
        group_hooks._oldest()
        self.assertGreater(self.entries()[0][5], 0)
        self.assertEqual(self.entries()[2][5], 0)

    def test_ring_keeps_the_last_operations_and_what_lasts(self):
        self.assertIsNotNone(record.open_ring())
        world = group_hooks._Group(Group("0", 2), True)
        self.issue(world, 0)
        for number in range(1, 1000):
            self.issue(world, number, done=True)
        found = self.entries()
        self.assertEqual((len(found), found[0][1], found[-1][1]), (record.ENTRIES, 1, 1000))
        self.assertEqual(found[0][5], 0)

    def test_nothing_is_recorded_without_a_ring(self):
        os.pwrite(self.page.descriptor, struct.pack("=III", record.MAGIC, record.VERSION + 1, 2),
                  2 * (page.PAGE_BYTES + record.AREA_BYTES) + page.PAGE_BYTES - record.PLACE_BYTES)
        self.assertIsNone(record.open_ring())
        world = group_hooks._Group(Group("0", 2), True)
        self.issue(world, 1)
        self.assertEqual(self.entries(), [])


if __name__ == "__main__":
    main()
