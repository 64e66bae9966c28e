#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""slurm_ddp: phases, steps and metrics, identity, and the start without a line in the program."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import PACKAGE, SOURCE, PageTest, environment, main, needs_torch, page

SHOW = """
import slurm_ddp
from slurm_ddp import page
names = {number: name for name, number in page.PHASES.items()}
def show():
    slot = page.slot()
    print(names[slot.get("phase")], slot.get("step"))
"""


class Steps(PageTest):
    def output(self, program, forked=False, **more):
        ended = self.page.run(SHOW + program, forked=forked, **more)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        return ended.stdout.splitlines()

    def test_steps_of_a_loader_have_phases(self):
        lines = self.output("""
def loader():
    for batch in (1, 2):
        show()
        yield batch
slurm_ddp.install()
show()
for batch in slurm_ddp.steps(loader(), start=10):
    show()
show()
""")
        self.assertEqual(lines, ["starting 0", "data 10", "compute 10", "data 11", "compute 11", "idle 12"])

    def test_loss_and_rate_are_on_the_page(self):
        lines = self.output("""
import time
for batch in slurm_ddp.steps([1, 2, 3]):
    time.sleep(0.02)
    slurm_ddp.step(loss=batch / 2, samples=64)
show()
slot = page.slot()
print(slot.get("python.loss"), slot.get("python.told"), slot.get("step_weight"), 0.02 <= slot.get("step_seconds") < 5)
""")
        self.assertEqual(lines, ["idle 4", "1.5 1 64.0 True"])

    def test_compute_leaves_waits_out(self):
        lines = self.output("""
import time
from slurm_ddp import progress
began = time.monotonic()
for batch in slurm_ddp.steps([1, 2]):
    time.sleep(0.05)
    with slurm_ddp.phase("wait"):
        time.sleep(0.5)
        progress.waited(0.5)
    time.sleep(0.5)
    progress.waited(0.5)
slot = page.slot()
print(slot.get("compute_steps"), 0.1 <= slot.get("compute_ns") / 1e9 <= time.monotonic() - began - 1.9)
""")
        self.assertEqual(lines, ["2 True"])

    def check_waits(self, hooks):
        """A stand-in for torch, in which a collective and backward take 0.2 s each."""
        lines = self.output(f"""
import os, sys, tempfile, time
folder = tempfile.mkdtemp()
os.makedirs(folder + "/torch/distributed")
backward = "import time\\ndef backward(value):\\n    time.sleep(0.2)\\n    value()\\n"
collectives = '''import time
class Work:
    def wait(self):
        time.sleep(0.2)
class ProcessGroup:
    register_pre_hook = None
if not {hooks}:
    del ProcessGroup.register_pre_hook
def all_reduce(tensor, async_op=False):
    return Work() if async_op else Work().wait()
'''
for name, text in (("__init__", ""), ("autograd", backward), ("distributed/__init__", ""), ("distributed/distributed_c10d", collectives)):
    with open(folder + "/torch/" + name + ".py", "w") as file:
        file.write(text)
sys.path.insert(0, folder)
slurm_ddp.install()
from torch.autograd import backward
from torch.distributed.distributed_c10d import all_reduce
for name, body, waits in (
        ("backward", lambda: backward(int), 0.2), ("all_reduce", lambda: all_reduce(1), 0.2),
        ("Work.wait", lambda: all_reduce(1, async_op=True).wait(), 0.2),
        # Of waits within each other only the outermost one counts.
        ("all_reduce in backward", lambda: backward(lambda: all_reduce(1)), 0.4),
        ("backward in backward", lambda: backward(lambda: backward(int)), 0.4)):
    for batch in slurm_ddp.steps([1]):
        before, began = page_slot.get("compute_ns"), time.monotonic()
        time.sleep(0.05)
        body()
        slurm_ddp.step()
        compute, total = page_slot.get("compute_ns") / 1e9 - before / 1e9, time.monotonic() - began
    if not 0.05 <= compute <= total - waits:
        print(name, compute, total)
""".replace("page_slot", "page.slot()"))
        self.assertEqual(lines, [])

    def test_waits_are_no_compute(self):
        self.check_waits(hooks=False)

    def test_waits_are_no_compute_with_hooks_of_groups(self):
        self.check_waits(hooks=True)

    def test_phase_ends_with_its_block(self):
        lines = self.output("""
slurm_ddp.phase("forward")
with slurm_ddp.phase("eval"):
    show()
show()
slurm_ddp.step(6, loss=None)
show()
try:
    slurm_ddp.phase("evaluation")
except ValueError as error:
    print(str(error).split(";")[0])
""")
        self.assertEqual(lines, ["eval 0", "forward 0", "forward 7", "there is no phase 'evaluation'"])

    def test_break_and_exceptions_leave_a_loop(self):
        lines = self.output("""
for batch in slurm_ddp.steps([1, 2, 3]):
    break
show()
for batch in slurm_ddp.steps([1], start=2):
    pass
show()
""")
        self.assertEqual(lines, ["compute 1", "idle 3"])

    def test_metrics_are_lines_that_ddp_report_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run/metrics.jsonl")
            program = f"""
slurm_ddp.install(metrics={str(path)!r})
for batch in slurm_ddp.steps(range(1, 6)):
    with slurm_ddp.phase("optimizer"):
        pass
    slurm_ddp.step(loss=float("nan") if batch == 3 else 1 / batch, samples=8, learning_rate=0.1)
"""
            self.output(program, RANK=0)
            self.output(program)  # rank 1 writes nothing
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4, 5])
            self.assertEqual([line["loss"] for line in lines][:3], [1.0, 0.5, None])
            self.assertTrue(all(line["weight"] == 8 and line["seconds"] > 0 and line["learning_rate"] == 0.1 for line in lines))
            report = subprocess.run([sys.executable, SOURCE / "libruntime/watch/ddp-report", path.parent], capture_output=True,
                                    text=True, timeout=60, check=False)
            self.assertEqual(report.returncode, 0, report.stderr)
            self.output(program, RANK=0)  # another run
            self.assertEqual(Path(str(path) + ".1").read_text().count("\n"), 5)
            self.assertEqual(path.read_text().count("\n"), 5)

    def test_metrics_that_cannot_be_written_end_no_training(self):
        ended = self.page.run("import slurm_ddp\nslurm_ddp.install(metrics='/proc/none/metrics')\nslurm_ddp.step(1)\n"
                              "slurm_ddp.step(2)", RANK=0)
        self.assertEqual(ended.returncode, 0)
        self.assertEqual(ended.stderr.count("metrics end at step 1: cannot write to /proc/none/metrics"), 1, ended.stderr)

    @needs_torch
    def test_loss_may_be_a_tensor(self):
        lines = self.output("""
import torch
slurm_ddp.step(1, loss=torch.tensor(2.5, requires_grad=True), samples=torch.tensor(4))
print(page.slot().get("python.loss"), page.slot().get("step_weight"))
""", forked=True)
        self.assertEqual(lines, ["2.5 4.0"])

    @needs_torch
    def test_unmodified_program_of_torch_has_steps_and_waits(self):
        lines = self.output("""
slurm_ddp.install()
show()
import torch
show()
data = torch.utils.data.TensorDataset(torch.rand(12, 1))
layer, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
optimizer, second = torch.optim.SGD(layer.parameters(), 0.1), torch.optim.Adam(other.parameters())
class Shown(torch.utils.data.Sampler):
    def __init__(self): pass
    def __len__(self): return 3
    def __iter__(self):
        for index in (1, 2, 3):
            show()
            yield index
for (x,) in torch.utils.data.DataLoader(data, sampler=Shown()):
    (layer(x) + other(x)).mean().backward()
    optimizer.step()
    second.step()
show()
import os, tempfile, torch.distributed as dist
folder = tempfile.mkdtemp()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dist.barrier()
slot = page.slot()
print(slot.get("collective"), slot.get("waiting"), slot.get("collective_text"))
""")
        self.assertEqual(lines, ["starting 0", "starting 0", "starting 0", "data 2", "data 3", "compute 4", "2 0 barrier"])

    @needs_torch
    def test_device_of_a_rank_without_a_gpu_is_the_cpu(self):
        lines = self.output("import torch\nprint('cpu' if torch.cuda.is_available() else slurm_ddp.device())", forked=True, LOCAL_RANK=3)
        self.assertEqual(lines, ["cpu"])


class Identity(unittest.TestCase):
    def run_with(self, program, **variables):
        return subprocess.run([sys.executable, "-c", "import slurm_ddp\n" + program], env=environment(**variables),
                              capture_output=True, text=True, timeout=60, check=False)

    def test_job_is_what_the_plugin_told(self):
        ended = self.run_with("print(slurm_ddp.job())", RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4, NODE_RANK=1,
                              NNODES=2, MASTER_ADDR="n0", MASTER_PORT=21000, DDP_NODE_NAME="n1", DDP_JOB_ID=7, DDP_STEP_ID=0,
                              DDP_RESTART_COUNT=2, DDP_PLUGIN_VERSION="0.2.0")
        self.assertEqual(ended.stdout, "Job(rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1, nodes=2, "
                         "node_name='n1', master_addr='n0', master_port=21000, job_id=7, step_id=0, restart_count=2, "
                         "by_plugin=True)\n", ended.stderr)

    def test_contradictions_are_refused(self):
        for variables, words in ((dict(RANK=8, WORLD_SIZE=8), "RANK is 8, but WORLD_SIZE is 8"),
                                 (dict(RANK=8), "of RANK and WORLD_SIZE one is set"),
                                 (dict(RANK="srun --ddp was asked for, but ...", WORLD_SIZE=2), "RANK is no number: srun --ddp")):
            ended = self.run_with("slurm_ddp.job()", **variables)
            self.assertIn(words, ended.stderr)

    def test_forgotten_srun_is_noticed(self):
        ended = self.run_with("slurm_ddp.check_launched()", SLURM_JOB_ID=7, SLURM_NTASKS=8)
        self.assertIn("this program runs as one process in a job of 8 tasks: start it by 'srun --ddp", ended.stderr)
        self.assertEqual(self.run_with("slurm_ddp.check_launched()", SLURM_JOB_ID=7, SLURM_NTASKS=1).returncode, 0)

    def test_time_left_follows_slurm(self):
        import time
        ended = self.run_with("print(slurm_ddp.time_left())", SLURM_JOB_ID=7, SLURM_JOB_END_TIME=int(time.time()) + 1000)
        self.assertTrue(900 < float(ended.stdout) <= 1000, ended.stdout)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "squeue").write_text("#!/bin/sh\necho '1-00:00:10   '\n")
            os.chmod(Path(folder, "squeue"), 0o755)
            ended = self.run_with("print(slurm_ddp.time_left())", SLURM_JOB_ID=7, SLURM_JOB_END_TIME="",
                                  PATH=f"{folder}:{os.environ['PATH']}")
        self.assertTrue(86000 < float(ended.stdout) <= 86410, ended.stdout + ended.stderr)

    def test_device_is_the_plugins_or_the_ranks(self):
        code = "import types, sys\ntorch = types.ModuleType('torch')\nsys.modules['torch'] = torch\n" \
               "torch.cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 4)\nprint(slurm_ddp.device())"
        self.assertEqual(self.run_with(code, LOCAL_RANK=3).stdout, "cuda:3\n")
        self.assertEqual(self.run_with(code, LOCAL_RANK=3, DDP_LOCAL_DEVICE=0).stdout, "cuda:0\n")


class WithoutALine(PageTest):
    """srun --ddp=python: DDP_PYTHON, and the folder `site` before the user's PYTHONPATH."""

    def start(self, program, *options, own="", **more):
        path = str(PACKAGE / "site") + (os.pathsep + own if own else "")
        variables = {**self.page.variables(), "DDP_PYTHON": "yes", "PYTHONPATH": path, **more}
        return subprocess.run([sys.executable, *options, "-c", program], env=environment(**variables), timeout=60,
                              pass_fds=[self.page.descriptor], capture_output=True, text=True, check=False)

    def test_unmodified_program_is_watched(self):
        ended = self.start("raise ValueError('bad')")
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(self.page.slot().get("error"), "ValueError: bad (<string>:1)", ended.stderr)

    def test_without_the_variable_nothing_happens(self):
        ended = self.start("import sys; print('slurm_ddp' in sys.modules)", DDP_PYTHON="")
        self.assertEqual((ended.stdout, self.page.slot().get("magic")), ("False\n", 0))

    def test_users_path_and_sitecustomize_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "sitecustomize.py").write_text("print('own sitecustomize')\n")
            Path(folder, "own.py").write_text("")
            ended = self.start("import os, sys, own, sitecustomize; print(os.environ['PYTHONPATH'], sitecustomize.__file__); "
                               f"print([p for p in sys.path if {str(PACKAGE / 'site')!r} in p])", own=folder)
            self.assertEqual(ended.stdout, f"own sitecustomize\n{folder} {folder}/sitecustomize.py\n[]\n", ended.stderr)
        ended = self.start("import os; print('PYTHONPATH' in os.environ)")
        self.assertEqual((ended.stdout, ended.stderr), ("False\n", ""))

    def test_users_own_slurm_ddp_wins(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "slurm_ddp").mkdir()
            Path(folder, "slurm_ddp/__init__.py").write_text("")
            Path(folder, "slurm_ddp/auto.py").write_text("print('own')")
            self.assertEqual(self.start("", own=folder).stdout, "own\n")

    def test_isolated_python_is_left_alone(self):
        for option in ("-I", "-E", "-S"):
            ended = self.start("print(1)", option)
            self.assertEqual((ended.stdout, self.page.slot().get("magic")), ("1\n", 0), option)

    def test_broken_package_ends_no_program(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "slurm_ddp").mkdir()
            Path(folder, "slurm_ddp/__init__.py").write_text("raise ValueError('torn')")
            ended = self.start("print(1)", own=folder, RANK=0)
            self.assertEqual((ended.returncode, ended.stdout), (0, "1\n"))
            self.assertIn("slurm_ddp: cannot start (srun --ddp=python): ValueError: torn", ended.stderr)

    def test_helper_processes_do_not_take_the_programs_place(self):
        ended = self.start("""
import multiprocessing as m, os, subprocess, sys
from slurm_ddp import page
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", "raise ValueError('of a helper')"], stderr=subprocess.DEVNULL)
    for way in ("spawn", "forkserver", "fork"):
        child = m.get_context(way).Process(target=os.getpid)
        child.start()
        child.join()
        assert child.exitcode == 0
    print(page.slot().get("error"), page.slot().get("pid") == os.getpid())
""")
        self.assertEqual(ended.stdout, " True\n", ended.stderr)
        self.assertEqual(self.page.slot(6).get("magic"), 0)

    def test_python_in_a_shell_is_watched_one_after_the_other(self):
        for number in (1, 2):
            self.start(f"raise ValueError({number})")
            self.assertEqual(self.page.slot().get("error"), f"ValueError: {number} (<string>:1)")

    def test_start_imports_nothing_large(self):
        program = "import sys; print([m for m in sys.modules if m.split('.')[0] in " \
                  "('torch', 'numpy', 'json', 'subprocess', 'socket', 'multiprocessing', 'inspect')])"
        self.assertEqual(self.start(program).stdout, "[]\n")


if __name__ == "__main__":
    main()
