# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ part of slurm-ddp-torch against the installed PyTorch and libddp."""

import glob
import os
import shlex
import subprocess
import sys

from setuptools import setup

HERE = os.path.dirname(os.path.abspath(__file__))


def libddp():
    """Compiler and linker options of libddp, which pkg-config or DDP_PREFIX finds."""
    environment = dict(os.environ)
    prefix = os.environ.get("DDP_PREFIX")
    if prefix:
        paths = [os.path.join(prefix, folder, "pkgconfig") for folder in ("lib", "lib64")]
        environment["PKG_CONFIG_PATH"] = os.pathsep.join(paths + [environment.get("PKG_CONFIG_PATH", "")])

    def ask(*options):
        command = [os.environ.get("PKG_CONFIG", "pkg-config"), *options, "libddp"]
        return subprocess.check_output(command, env=environment, universal_newlines=True).strip()

    try:
        return shlex.split(ask("--cflags")), shlex.split(ask("--libs")), ask("--variable=libdir")
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(
            f"slurm-ddp-torch needs libddp of slurm-ddp, which pkg-config does not find ({error}): install the package "
            "libddp-dev or slurm-ddp-devel, or set DDP_PREFIX to the folder that --prefix of slurm-ddp's configure named"
        )


def extension():
    try:
        from torch.utils.cpp_extension import CppExtension
    except ImportError as error:
        sys.exit(
            f"slurm-ddp-torch is compiled against the PyTorch that is installed, which cannot be imported ({error}): "
            "install torch first, and call pip with --no-build-isolation"
        )
    compile_args, link_args, folder = libddp()
    return CppExtension(
        "slurm_ddp_torch._C",
        sorted(os.path.relpath(name, HERE) for name in glob.glob(os.path.join(HERE, "csrc", "*.cpp"))),
        # Torch's own choice of the C++ standard comes later and wins, except that 1.13's is too old.
        extra_compile_args=["-std=c++20" if cpp20() else "-std=c++17", "-Wall", *compile_args],
        extra_link_args=[*link_args, f"-Wl,-rpath,{folder}"],
    )


def cpp20():
    import torch

    return int(torch.__version__.split(".")[0]) >= 2 and int(torch.__version__.split(".")[1]) >= 12


def build_ext():
    from torch.utils.cpp_extension import BuildExtension

    # One compiler at a time: each takes up to 1.5 GB.
    return BuildExtension.with_options(use_ninja=False)


if __name__ == "__main__":
    os.chdir(HERE)
    setup(ext_modules=[extension()], cmdclass={"build_ext": build_ext()})
