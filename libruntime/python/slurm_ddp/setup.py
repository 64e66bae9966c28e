# SPDX-License-Identifier: Apache-2.0
"""pyproject.toml has the rest. This adds the file by which srun --ddp=python finds an installed slurm_ddp."""
import os
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class WithPth(build_py):
    def run(self):
        super().run()
        shutil.copy("slurm_ddp.pth", os.path.join(self.build_lib, "slurm_ddp.pth"))

    def get_outputs(self, *arguments, **keywords):
        return super().get_outputs(*arguments, **keywords) + [os.path.join(self.build_lib, "slurm_ddp.pth")]


setup(cmdclass={"build_py": WithPth})
