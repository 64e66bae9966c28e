# SPDX-License-Identifier: Apache-2.0
"""Makes slurm_ddp's wheel by Python alone, as pip asks for it (PEP 517, 660): no setuptools, no network, no file in this
folder. `python3 backend.py DIR` makes one, too."""
import base64
import hashlib
import io
import os
import re
import sys
import tarfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "slurm_ddp")
PTH = "slurm_ddp.pth"


def read(*path):
    with open(os.path.join(HERE, *path), encoding="utf-8") as file:
        return file.read()


def version():
    return re.search('__version__ = "(.*)"', read("slurm_ddp", "__init__.py")).group(1)


def metadata():
    return (f"Metadata-Version: 2.1\nName: slurm-ddp\nVersion: {version()}\n"
            "Summary: Python's side of srun --ddp: who a rank is, what it does, how it stops and is resumed\n"
            "License: Apache-2.0\nRequires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n" + read("README.md"))


def modules():
    return {f"slurm_ddp/{name}": read("slurm_ddp", name) for name in sorted(os.listdir(PACKAGE)) if name.endswith(".py")}


def make(folder, files):
    """Writes a wheel of these files, a text for each name, and returns its name. The same files give the same bytes."""
    stem = f"slurm_ddp-{version()}"
    files = {**files, f"{stem}.dist-info/METADATA": metadata(), f"{stem}.dist-info/WHEEL":
             "Wheel-Version: 1.0\nGenerator: slurm-ddp\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    record = f"{stem}.dist-info/RECORD"
    lines = []
    for name, text in files.items():
        data = text.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    files[record] = "".join(lines) + f"{record},,\n"
    name = f"{stem}-py3-none-any.whl"
    path = os.path.join(folder, name)
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)  # of 1980
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    os.replace(path + ".new", path)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return make(wheel_directory, {**modules(), PTH: read(PTH)})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return make(wheel_directory, {PTH: HERE + "\n" + read(PTH)})


def build_sdist(sdist_directory, config_settings=None):
    stem = f"slurm_ddp-{version()}"
    files = {**modules(), "PKG-INFO": metadata()}
    files.update((name, read(name)) for name in ("README.md", "backend.py", "pyproject.toml", PTH))
    with tarfile.open(os.path.join(sdist_directory, f"{stem}.tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{stem}/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{stem}.tar.gz"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: backend.py DIR")
    print(build_wheel(sys.argv[1]))
