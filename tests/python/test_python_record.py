#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""slurm_ddp's flight recorder: the layout of watch/record.h, the ring's order, and the program's line."""
import os
import re
import struct
import types
import unittest

from support import LayoutTest, PageTest, main, page

from slurm_ddp import group_hooks, record  # noqa: E402  # pylint: disable=wrong-import-position,wrong-import-order


class Layout(LayoutTest):
    def test_layout_is_the_headers(self):
        numbers = {f"DDP_RECORD_{name}": getattr(record, name) for name in
                   ("MAGIC", "VERSION", "ENTRIES", "ENTRY_BYTES", "HEADS_BYTES", "AREA_BYTES", "PLACE_BYTES", "NAMED",
                    "UNKNOWN_END", "OF_ALL")}
        numbers["DDP_RECORD_FILE_BYTES(3)"] = 3 * (page.PAGE_BYTES + record.AREA_BYTES) + page.PAGE_BYTES
        numbers["sizeof(struct ddp_record_head)"] = 64
        numbers["offsetof(struct ddp_record_head, next)"] = 8
        numbers.update((f"DDP_{kind.upper()}", number) for number, kind in enumerate(record.KINDS))
        short = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U"}
        for number, name in enumerate(record.TYPES):
            numbers["DDP_" + re.sub("[a-z]+(?=[0-9])", lambda word: short[word.group()], name).upper()] = number
        forms = re.findall("[0-9]*[A-Za-z]", record._ENTRY.format)
        sizes = [struct.calcsize(f"={form}") for form in forms]
        self.assertEqual(len(sizes), len(record.OFFSETS))
        fields = {name: (offset, size) for (name, offset), size in zip(record.OFFSETS.items(), sizes)}
        self.compare("watch/record.h", "ddp_record_entry", fields, numbers)
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
        self.say_place(record.VERSION)
        self.before = dict(os.environ)
        os.environ.update({name: str(value) for name, value in self.page.variables().items()})
        page._slot, page._tried, record._ring = None, False, None
        group_hooks._pid = os.getpid()
        page.open_slot()
        self.addCleanup(self.restore)

    def say_place(self, version):
        os.pwrite(self.page.descriptor, struct.pack("=III", record.MAGIC, version, 2),
                  2 * (page.PAGE_BYTES + record.AREA_BYTES) + page.PAGE_BYTES - record.PLACE_BYTES)

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
        self.say_place(record.VERSION + 1)
        self.assertIsNone(record.open_ring())
        world = group_hooks._Group(Group("0", 2), True)
        self.issue(world, 1)
        self.assertEqual(self.entries(), [])


if __name__ == "__main__":
    main()
