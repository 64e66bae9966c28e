# SPDX-License-Identifier: Apache-2.0
"""The MPIs to compare with: where each is, how its ranks start, and the settings that are measured. The best setting
of a cell is the MPI's figure there (comparison.py)."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field

from .group import ContenderMissing

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.dirname(os.path.dirname(HERE))
SOURCES = {"rank_mpi": ("rank_mpi.c", "rank.c"), "rank_startup_mpi": ("rank_startup_mpi.c",)}


@dataclass(frozen=True)
class Mpi:
    """`mpicc` and `mpiexec` are in the folder of tests/bench/peers, or in PATH under the second names. `srun` starts
    ranks on nodes. `env` is for all; `node` and `link` have what is for a node, or between nodes, and by the name of a
    setting what that adds: "" is the MPI's own choice."""

    mpicc: tuple
    mpiexec: tuple
    options: tuple
    srun: tuple
    env: dict = field(default_factory=dict)
    node: dict = field(default_factory=dict)
    link: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    link_settings: dict = field(default_factory=dict)


def mca(**values):
    return {f"OMPI_MCA_{name}": value for name, value in values.items()}


ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
# A message below the eager limit is sent without asking the receiver first. The kernel sets a socket's size itself if it
# is told 0, and grows it by what the connection needs.
TCP = mca(btl_tcp_eager_limit="262144", btl_tcp_rndv_eager_limit="262144", btl_tcp_max_send_size="1048576")
TCP_SETTINGS = {"": {}, "large-sockets": {**TCP, **mca(btl_tcp_sndbuf="4194304", btl_tcp_rcvbuf="4194304")},
                "kernel-sockets": {**TCP, **mca(btl_tcp_sndbuf="0", btl_tcp_rcvbuf="0")}}
# The settings whose ranks reduce memory of MPI_Alloc_mem(), or of a heap that they share.
MEMORY, HEAP = "MPI-memory", "heap"
MPIS = {
    "openmpi": Mpi((None, "mpicc.openmpi"), (None, "mpirun.openmpi"), (*ROOT, "--oversubscribe", "--bind-to", "none"), ("--mpi=pmix",),
                   mca(pml="ob1", btl="self,vader,tcp"), link_settings=TCP_SETTINGS, settings={
                       "": {}, "copies": mca(btl_vader_single_copy_mechanism="none"),
                       "large-copies": mca(btl_vader_single_copy_mechanism="none", btl_vader_eager_limit="65536",
                                           btl_vader_max_send_size="65536"),
                       "yielding": mca(mpi_yield_when_idle="1"), MEMORY: {"BENCH_MPI_MEMORY": "1"}}),
    "openmpi5": Mpi(("openmpi5/bin/mpicc", None), ("openmpi5/bin/mpirun", None), (*ROOT, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
                    ("--mpi=pmix",), mca(pml="ob1", btl="self,sm,tcp"), link_settings=TCP_SETTINGS,
                    settings={"": {}, "copies": mca(smsc="^cma,knem,xpmem")}),
    "intelmpi": Mpi(("intelmpi/bin/mpicc", None), ("intelmpi/bin/mpiexec.hydra", None), (), ("--mpi=pmi2",),
                    {"I_MPI_ROOT": "{peers}/intelmpi", "I_MPI_PIN": "0"}, {"I_MPI_FABRICS": "shm"},
                    {"I_MPI_FABRICS": "shm:ofi", "FI_PROVIDER": "tcp"}, {
                        "": {}, "yielding": {"I_MPI_THREAD_YIELD": "2"}, HEAP: {"I_MPI_SHM_HEAP": "1"},
                        MEMORY: {"BENCH_MPI_MEMORY": "1"}}),
    "mpich": Mpi(("mpich/bin/mpicc", "mpicc.mpich"), ("mpich/bin/mpiexec.hydra", "mpiexec.hydra"), (), ("--mpi=pmi2",)),
}


def names(where):
    """Of all settings, on a "node" or a "link": the MPI, or "MPI:SETTING"."""
    found = []
    for name, mpi in MPIS.items():
        settings = (mpi.settings if where == "node" else mpi.link_settings) or {"": {}}
        found += [f"{name}:{setting}" if setting else name for setting in settings]
    return found


class Installed:
    """The MPIs of this machine; `folder` is where tests/bench/peers puts some, and where ranks are compiled."""

    def __init__(self, folder):
        self.folder = folder

    def find(self, name, of):
        for base, path in zip((self.folder, None), of):
            found = path and shutil.which(os.path.join(base, path) if base else path)
            if found:
                return found
        raise ContenderMissing(f"{name}: {os.path.basename(of[0] or of[1])} is not installed; see tests/bench/peers and "
                               "slurm/install-deps --benchmarks")

    def program(self, name, program):
        """The path of a rank's program, compiled by this MPI's own compiler unless it is there and new."""
        mpicc = self.find(name, MPIS[name].mpicc)
        sources = [os.path.join(HERE, source) for source in SOURCES[program]]
        path = os.path.join(self.folder, f"{program}.{name}")
        if not os.path.exists(path) or os.path.getmtime(path) < max(map(os.path.getmtime, [mpicc, *sources])):
            os.makedirs(self.folder, exist_ok=True)
            done = subprocess.run([mpicc, "-D_GNU_SOURCE", "-O2", f"-I{TREE}/libruntime", f"-I{TREE}", *sources, "-o", path],
                                  env={**os.environ, **self.env(name)}, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ContenderMissing(f"{name}: {mpicc} fails: {' '.join(done.stderr.split())[-300:]}")
        return path

    def env(self, name, setting="", where="node"):
        mpi = MPIS[name]
        of = (mpi.settings, mpi.node) if where == "node" else (mpi.link_settings, mpi.link)
        return {key: value.format(peers=self.folder) for key, value in
                {**mpi.env, **of[1], **of[0].get(setting, {})}.items()}

    def on_node(self, contender, ranks):
        """The command and the environment of `ranks` ranks here."""
        name, _, setting = contender.partition(":")
        mpi = MPIS[name]
        return ([self.find(name, mpi.mpiexec), *mpi.options, "-n", str(ranks), self.program(name, "rank_mpi")],
                self.env(name, setting))

    def by_srun(self, contender, program):
        """The words after srun's options, and the environment."""
        name, _, setting = contender.partition(":")
        return [*MPIS[name].srun, self.program(name, program)], self.env(name, setting, "link")
