#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""slurm_ddp's progress page: the layout of progress.h, and who takes which slot."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import SOURCE, PageTest, environment, main, page

OFFSETS = r"""
#include <stddef.h>
#include <stdio.h>
#include "watch/progress.h"
#include "ddp.h"
#define AT(field) printf("%s %zu %zu\n", #field, offsetof(struct ddp_progress, field), sizeof(((struct ddp_progress *)0)->field));
#define NUMBER(name, value) printf("= %s %ld\n", name, (long)(value));
int main(void)
{
	FIELDS
	NUMBER("MAGIC", DDP_PROGRESS_MAGIC) NUMBER("TAKEN", DDP_PROGRESS_TAKEN)
	NUMBER("PAGE_BYTES", DDP_PROGRESS_BYTES) NUMBER("SLOTS", DDP_PROGRESS_SLOTS)
	NUMBER("SLOT_BYTES", DDP_PROGRESS_SLOT_BYTES) NUMBER("WRITER_PYTHON", DDP_WRITER_PYTHON)
	NUMBER("ERR_PEER", DDP_ERR_PEER) NUMBER("ERR_INTERNAL", DDP_ERR_INTERNAL)
	NUMBER("WAITING_NOT", DDP_WAITING_NOT) NUMBER("WAITING_COLLECTIVE", DDP_WAITING_COLLECTIVE)
	NUMBER("WAITING_OTHER", DDP_WAITING_OTHER)
	NUMBER("idle", DDP_PHASE_IDLE) NUMBER("data", DDP_PHASE_DATA) NUMBER("forward", DDP_PHASE_FORWARD)
	NUMBER("backward", DDP_PHASE_BACKWARD) NUMBER("wait", DDP_PHASE_WAIT) NUMBER("optimizer", DDP_PHASE_OPTIMIZER)
	NUMBER("checkpoint", DDP_PHASE_CHECKPOINT) NUMBER("eval", DDP_PHASE_EVAL)
	NUMBER("starting", DDP_PROGRESS_STARTING) NUMBER("compute", DDP_PROGRESS_COMPUTING)
	NUMBER("ending", DDP_PROGRESS_ENDING)
	return 0;
}
"""
compiler = shutil.which(os.environ.get("CC", "cc").split()[-1])


class Layout(unittest.TestCase):
    @unittest.skipUnless(compiler, "there is no C compiler")
    def test_layout_is_the_headers(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, "offsets.c"), Path(folder, "offsets")
            source.write_text(OFFSETS.replace("FIELDS", " ".join(f"AT({field})" for field in page.LAYOUT)))
            subprocess.run([compiler, f"-I{SOURCE}/libruntime", f"-I{SOURCE}/libruntime/include", "-o", program, source],
                           check=True)
            lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
        sizes = {"=I": 4, "=i": 4, "=q": 8, "=Q": 8, "=d": 8}
        for line in lines:
            words = line.split()
            if words[0] == "=":
                known = page.PHASES.get(words[1], getattr(page, words[1], None))
                self.assertEqual(int(words[2]), known, words[1])
            else:
                offset, form = page.LAYOUT[words[0]]
                self.assertEqual((int(words[1]), int(words[2])), (offset, sizes.get(form, form)), words[0])
        self.assertEqual(len(lines), len(page.LAYOUT) + 22)


class Slots(PageTest):
    def test_program_takes_the_last_slot_of_its_page(self):
        ended = self.page.run("import slurm_ddp; slurm_ddp.install(); slurm_ddp.phase('eval'); print(slurm_ddp.job().rank)")
        self.assertEqual((ended.returncode, ended.stdout), (0, "1\n"), ended.stderr)
        slot = self.page.slot()
        self.assertEqual((slot.get("magic"), slot.get("writer"), slot.get("bucket")), (page.MAGIC, page.WRITER_PYTHON, -1))
        self.assertEqual(slot.get("phase"), page.PHASES["ending"])
        self.assertEqual(self.page.slot(local_rank=0).get("magic"), 0)

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
        import sys
        ended = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True,
                               timeout=60, check=False)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "", ""))


if __name__ == "__main__":
    main()
