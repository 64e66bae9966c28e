# SPDX-License-Identifier: Apache-2.0
# Spack: put this file into packages/slurm_ddp/ of a repository of your own (spack repo create); before Spack 1.0 the folder
# is packages/slurm-ddp/. The archive is that of make dist, in a mirror or beside this file.
#   spack install --no-checksum slurm-ddp
#   make check-packages PARTS=spack SPACK=DIR/bin/spack    in a build of slurm-ddp: the same, on the libraries of a Debian system
import os

from spack.package import *

try:
    from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
except ImportError:  # before Spack 1.0, spack.package has it
    pass


class SlurmDdp(AutotoolsPackage):
    """Data-parallel training under SLURM: srun --ddp tells each task its rank and its master, and libddp reduces gradients
    between processes and nodes while backward still runs."""

    homepage = "https://slurm-ddp.invalid/"
    # Other versions' names follow from it.
    url = f"file://{os.path.dirname(__file__)}/slurm-ddp-0.3.0.tar.gz"
    manual_download = True

    license("Apache-2.0")

    version("0.3.0")

    variant("slurm", default=True, description="Build the SPANK plugin; it fits one major.minor release of Slurm")
    variant("ucx", default=True, description="Communicate between nodes")
    variant("pmix", default=True, description="Wire ranks up by PMIx, too")
    variant("blas", default="openblas", values=("openblas", "onednn", "none"), multi=False, description="Matrix products of libddpkernels")
    variant("openmp", default=True, description="Several threads in a rank")
    variant("cuda", default=False, description="Build the module for GPUs")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.8:", type=("build", "run"))
    depends_on("jansson")
    depends_on("openssl")
    depends_on("slurm@22.05:", when="+slurm")
    depends_on("ucx@1.13:", when="+ucx")
    depends_on("pmix@3:", when="+pmix")
    depends_on("openblas", when="blas=openblas")
    depends_on("onednn", when="blas=onednn")
    depends_on("cuda", when="+cuda")
    depends_on("cmocka", type="test")

    sanity_check_is_file = [join_path("lib", "libddp.so"), join_path("include", "ddp.h"), join_path("bin", "ddp-status")]

    def configure_args(self):
        spec = self.spec
        args = []
        for name in ("slurm", "ucx", "pmix", "cuda"):
            args.append(f"--with-{name}={spec[name].prefix}" if spec.satisfies(f"+{name}") else f"--without-{name}")
        if spec.satisfies("+slurm"):
            args.append(f"--with-spankdir={self.prefix.lib.slurm}")
        if spec.satisfies("+ucx"):
            args.append("--enable-nccl-net")
        if not spec.satisfies("+cuda"):
            args.append("--disable-cuda-kernels")
        if not spec.satisfies("+openmp"):
            args.append("--disable-openmp")
        args.append("--without-blas" if spec.satisfies("blas=none") else f"--with-blas={spec.variants['blas'].value}")
        return args

    @property
    def build_targets(self):
        # No examples, no benchmarks.
        return ["noinst_PROGRAMS="]

    @property
    def install_targets(self):
        return ["install", "noinst_PROGRAMS="]

    def test_tools(self):
        """each tool runs and says its version"""
        for name in ("ddp-failures", "ddp-preflight", "ddp-report", "ddp-status"):
            tool = Executable(join_path(self.prefix.bin, name))
            assert f"{name} {self.version}" in tool("--version", output=str.split, error=str.split)
