# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ part of slurm-ddp-torch against the installed PyTorch and libddp.

Variables of the environment:
  DDP_PREFIX             the folder in which libddp is installed, if pkg-config does not find it
  DDP_TORCH_FILES=yes    compiles each file by itself, so that ccache finds those that have not changed; without it,
                         all of them are compiled as one (csrc/whole.cpp), which takes a third of the time
"""

import glob
import os
import shlex
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = sorted(os.path.join("csrc", os.path.basename(name)) for name in glob.glob(os.path.join(HERE, "csrc", "*")))
WHOLE = os.path.join("csrc", "whole.cpp")
SOURCES = [WHOLE]
if os.environ.get("DDP_TORCH_FILES") == "yes":
    SOURCES = [name for name in FILES if name.endswith(".cpp") and name != WHOLE]
# The loader looks there by itself; packages have no paths of their own for these.
LOADERS_FOLDERS = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")


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
        libdir = ask("--variable=libdir")
        sysroot = os.environ.get("PKG_CONFIG_SYSROOT_DIR")
        # A package is built here, and installed elsewhere.
        if sysroot and libdir.startswith(sysroot):
            libdir = libdir[len(sysroot) :]
        return shlex.split(ask("--cflags")), shlex.split(ask("--libs")), libdir
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(
            f"slurm-ddp-torch needs libddp of slurm-ddp, which pkg-config does not find ({error}): install the package "
            "libddp-dev or slurm-ddp-devel, or set DDP_PREFIX to the folder that --prefix of slurm-ddp's configure named"
        )


def prepare(extension):
    """Completes the extension for the torch and the libddp that are installed."""
    import torch
    from torch.utils.cpp_extension import CppExtension

    compile_args, link_args, libdir = libddp()
    release = tuple(int(number) for number in torch.__version__.split(".")[:2])
    # Torch's own choice of the C++ standard comes later and wins, except that 1.13's is too old.
    extension.extra_compile_args = ["-std=c++20" if release >= (2, 12) else "-std=c++17", "-Wall", *compile_args]
    extension.extra_link_args = list(link_args)
    if not (libdir + "/").startswith(LOADERS_FOLDERS):
        extension.extra_link_args.append(f"-Wl,-rpath,{libdir}")
    torchs = CppExtension(extension.name, extension.sources)
    for name in ("include_dirs", "library_dirs", "libraries", "language"):
        setattr(extension, name, getattr(torchs, name))


def builder():
    """The command that builds the extension. What only packs the sources needs no torch."""
    try:
        from torch.utils.cpp_extension import BuildExtension
    except ImportError as missing:
        error = str(missing)

        class Refuses(build_ext):
            def run(self):
                sys.exit(
                    "slurm-ddp-torch is compiled against the PyTorch that is installed, which cannot be imported "
                    f"({error}): install torch first, and call pip with --no-build-isolation"
                )

        return Refuses

    class Builds(BuildExtension):
        def build_extensions(self):
            for extension in self.extensions:
                prepare(extension)
            super().build_extensions()

    # One compiler at a time: each takes up to 1.5 GB.
    return Builds.with_options(use_ninja=False)


if __name__ == "__main__":
    os.chdir(HERE)
    extension = Extension("slurm_ddp_torch._C", SOURCES, depends=FILES, language="c++")
    setup(ext_modules=[extension], cmdclass={"build_ext": builder()})
