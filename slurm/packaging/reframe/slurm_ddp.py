# SPDX-License-Identifier: Apache-2.0
"""A check of ReFrame (4 or later) for a site's regression suite: srun --ddp gives ranks, names a rank that fails, and ends the step.

    reframe -C SITE.py -c slurm_ddp.py -r
    reframe -C SITE.py -c slurm_ddp.py -r -S num_nodes=8 -S tasks_per_node=4 -S preflight=yes

The partition's launcher is srun. Nothing is compiled: the programs are a shell and, with preflight, ddp-preflight of slurm-ddp-tools.
"""
import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_after, run_before, sanity_function, variable


class DdpCheck(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    num_nodes = variable(int, value=2)
    tasks_per_node = variable(int, value=2)
    ddp_options = variable(str, value="")
    time_limit = "10m"
    tags = {"slurm-ddp", "production"}
    maintainers = ["slurm-ddp"]

    @run_after("setup")
    def ask_for_ranks(self):
        self.num_tasks_per_node = self.tasks_per_node
        self.num_tasks = self.num_nodes * self.tasks_per_node
        self.job.launcher.options += [f"--ddp={self.ddp_options}" if self.ddp_options else "--ddp"]


@rfm.simple_test
class DdpRanks(DdpCheck):
    """Each task has a rank of its own, and all have one master."""
    descr = "srun --ddp: ranks and master"
    executable = "sh"
    executable_opts = ["-c", "'echo rank $RANK of $WORLD_SIZE local $LOCAL_RANK master $MASTER_ADDR:$MASTER_PORT'"]

    @sanity_function
    def ranks_are_dense(self):
        line = r"^rank (?P<rank>\d+) of (?P<size>\d+) local \d+ master (?P<master>\S+:\d+)$"
        return sn.all([
            sn.assert_eq(sn.sorted(sn.extractall(line, self.stdout, "rank", int)), list(range(self.num_tasks)),
                         msg="the ranks are {0}, and should be {1}"),
            sn.assert_eq(sn.extractall(line, self.stdout, "size", int), [self.num_tasks] * self.num_tasks),
            sn.assert_eq(sn.count_uniq(sn.extractall(line, self.stdout, "master")), 1, msg="there are {0} masters"),
        ])


@rfm.simple_test
class DdpFailure(DdpCheck):
    """The last rank fails; the others would run for minutes."""
    descr = "srun --ddp: a rank that fails is named, and ends the step"
    executable = "sh"
    executable_opts = ["-c", "'[ $RANK != $((WORLD_SIZE - 1)) ] || exit 7; exec sleep 300'"]
    postrun_cmds = ["echo srun ended with $?"]

    @sanity_function
    def failure_is_named(self):
        rank = self.num_tasks - 1
        return sn.all([
            sn.assert_found(rf"ddp: rank {rank} of {self.num_tasks} on \S+ exited with code 7", self.stderr),
            sn.assert_found(r"^srun ended with 7$", self.stdout),
        ])


@rfm.simple_test
class DdpPreflight(DdpCheck):
    """ddp-preflight measures ranks and links, and names what is odd. It needs libddp on the nodes."""
    descr = "ddp-preflight: no node and no link is odd"
    preflight = variable(str, value="no")
    executable = "ddp-preflight"

    @run_after("init")
    def choose(self):
        self.skip_if(self.preflight != "yes", "-S preflight=yes runs it")

    @run_before("run")
    def note_status(self):
        self.postrun_cmds = ["echo srun ended with $?"]

    @sanity_function
    def nothing_is_odd(self):
        return sn.assert_found(r"^srun ended with 0$", self.stdout)
