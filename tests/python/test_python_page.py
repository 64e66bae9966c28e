#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""slurm_ddp's progress page: the layout of progress.h, and who takes which slot."""
import os
import subprocess
import sys
import unittest

from support import LayoutTest, PageTest, environment, main, page


class Layout(LayoutTest):
    def test_layout_is_the_headers(self):
        sizes = {"=I": 4, "=i": 4, "=q": 8, "=Q": 8, "=d": 8}
        fields = {name: (offset, sizes.get(form, form)) for name, (offset, form) in page.LAYOUT.items()}
        numbers = {"DDP_PROGRESS_MAGIC": page.MAGIC, "DDP_PROGRESS_TAKEN": page.TAKEN, "DDP_PROGRESS_BYTES": page.PAGE_BYTES,
                   "DDP_PROGRESS_SLOTS": page.SLOTS, "DDP_PROGRESS_SLOT_BYTES": page.SLOT_BYTES}
        for name in ("WRITER_PYTHON", "ERR_PEER", "ERR_INTERNAL", "WAITING_NOT", "WAITING_COLLECTIVE", "WAITING_OTHER"):
            numbers[f"DDP_{name}"] = getattr(page, name)
        numbers.update(DDP_PROGRESS_SURVIVES=page.SURVIVES, DDP_PROGRESS_SURVIVED=page.SURVIVED)
        others = {"starting": "STARTING", "compute": "COMPUTING", "ending": "ENDING"}
        for name, number in page.PHASES.items():
            numbers[f"DDP_PROGRESS_{others[name]}" if name in others else f"DDP_PHASE_{name.upper()}"] = number
        self.compare("watch/progress.h", "ddp_progress", fields, numbers)
        names = ("generation", "restart_count", "master_port", "master_addr", "key")
        sizes, start = (4, 4, 4, 256, 68), page.DEAL[0]
        fields = {"deal." + name: (start + sum(sizes[:number]), sizes[number]) for number, name in enumerate(names)}
        self.compare("watch/progress.h", "ddp_progress_node", fields, {})


class Slots(PageTest):
    def test_program_takes_the_last_slot_of_its_page(self):
        ended = self.page.run("import slurm_ddp; slurm_ddp.install(); slurm_ddp.phase('eval'); print(slurm_ddp.job().rank)")
        self.assertEqual((ended.returncode, ended.stdout), (0, "1\n"), ended.stderr)
        slot = self.page.slot()
        self.assertEqual((slot.get("magic"), slot.get("writer"), slot.get("bucket")), (page.MAGIC, page.WRITER_PYTHON, -1))
        self.assertEqual(slot.get("phase"), page.PHASES["ending"])
        self.assertEqual(self.page.slot(local_rank=0).get("magic"), 0)

    def test_program_survives_unless_nobody_could_join_it(self):
        program = "from slurm_ddp import page; page.open_slot(); page.set_survives(%s)"
        for more, says, aside in (({}, True, page.SURVIVES), ({}, False, 0), ({"TORCHELASTIC_MAX_RESTARTS": 1}, True, 0),
                                  ({"TORCHELASTIC_MAX_RESTARTS": 1, "DDP_JOINS": 0}, True, page.SURVIVES)):
            self.page.run(program % says, **more)
            self.assertEqual(self.page.slot().get("aside"), aside)
            self.page.slot().set("magic", 0)

    def test_libddps_errors_are_past_when_the_ranks_have_met_again(self):
        other = self.page.slot(0)
        for name, value in (("magic", page.MAGIC), ("status", page.ERR_PEER), ("culprit", 3), ("error_state", 1), ("error", "lost")):
            other.set(name, value)
        self.page.run("import os; from slurm_ddp import page; slot = page.open_slot(); "
                      "page.Slot(slot.memory, slot.start - 7 * page.SLOT_BYTES).set('pid', os.getpid()); page.forget_errors()")
        self.assertEqual([other.get(name) for name in ("status", "culprit", "error_state", "error")], [0, 0, 0, ""])

    def test_next_program_takes_the_slot_of_an_ended_one(self):
        for number in range(3):
            self.page.run(f"import slurm_ddp; slurm_ddp.install(); slurm_ddp.step({number + 5})")
        self.assertEqual(self.page.slot().get("step"), 8)
        self.assertEqual(self.page.slot(6).get("magic"), 0)

    def test_slots_of_others_stay(self):
        other = self.page.slot()
        for name, value in (("magic", page.MAGIC), ("pid", os.getpid()), ("step", 4)):
            other.set(name, value)
        ended = self.page.run("import slurm_ddp; slurm_ddp.step(9)")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual((other.get("step"), self.page.slot(6).get("step")), (4, 10))

    def test_full_page_costs_nothing(self):
        for number in range(page.SLOTS):
            self.page.slot(number).set("magic", page.MAGIC)
        ended = self.page.run("import slurm_ddp; slurm_ddp.install(); slurm_ddp.step(9); slurm_ddp.phase('data')")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_forked_child_does_not_write(self):
        ended = self.page.run("""
import os, slurm_ddp
slurm_ddp.install()
slurm_ddp.step(1)
if os.fork() == 0:
    slurm_ddp.step(70)
    slurm_ddp.phase("eval")
    raise ValueError("of the child")
os.wait()
os._exit(0)
""")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        slot = self.page.slot()
        self.assertEqual((slot.get("step"), slot.get("error"), slot.get("phase")), (2, "", page.PHASES["compute"]))

    def test_worker_of_torchrun_has_no_page(self):
        self.page.run("import slurm_ddp; slurm_ddp.install(); slurm_ddp.step(9)", TORCHELASTIC_RUN_ID="x")
        self.assertEqual(self.page.slot().get("magic"), 0)

    def test_wrong_descriptors_are_no_page(self):
        for wrong in ("", "x", "-1", "987", "0"):
            ended = self.page.run("import slurm_ddp; slurm_ddp.install(); slurm_ddp.step(9)", DDP_PROGRESS_FD=wrong)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""), wrong)


class WithoutAnything(unittest.TestCase):
    def test_all_calls_work_without_plugin_and_slurm(self):
        program = """
import slurm_ddp
slurm_ddp.install()
job = slurm_ddp.check_launched()
assert (job.rank, job.world_size, job.by_plugin) == (0, 1, False), job
for batch in slurm_ddp.steps([1, 2]):
    with slurm_ddp.phase("eval"):
        pass
    slurm_ddp.step(loss=batch, samples=4)
assert slurm_ddp.time_left() == float("inf") and slurm_ddp.restart_count == 0
"""
        ended = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True,
                               timeout=60, check=False)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "", ""))


if __name__ == "__main__":
    main()
