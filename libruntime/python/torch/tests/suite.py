# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of backends, distributed_test.py of its wheel, and writes a line for each test.

    python suite.py --ranks 2 --backend gloo > gloo.txt
    python suite.py --ranks 2 --backend ddp > ddp.txt
    python suite.py --ranks 2 --backend ddp --as-gloo > ddp-as-gloo.txt
    python suite.py --compare gloo.txt ddp.txt ddp-as-gloo.txt

Many tests run only if the backend's name is "gloo". `ddp` keeps its own name, and the tests take it for gloo where they
compare names. With --as-gloo, the backend also has gloo's name; then the C++ part of DDP takes it for a
ProcessGroupGloo and crashes, so the tests of DDP are left out.
"""

import argparse
import os
import sys
import tempfile
import unittest


# What gloo passes and another backend cannot.
KNOWN = {"test_ddp_logging_data_cpu": 'torch calls a backend that is not its own "custom" in DDP\'s log'}


class TakenForGloo(str):
    """The backend's name, which the tests' comparisons take for gloo's."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")


def prepare(arguments):
    """Sets what distributed_test.py reads when it is imported, and returns its module."""
    folder = tempfile.mkdtemp(prefix="ddp-torch-suite-")
    for name in ("barrier", "test_dir"):
        os.mkdir(os.path.join(folder, name))
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(arguments.ranks),
        TEMP_DIR=folder,
        MASTER_ADDR="127.0.0.1",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(arguments.timeout),
        CUDA_VISIBLE_DEVICES="",
    )
    import torch

    torch.set_num_threads(1)
    import torch.distributed as dist

    if arguments.backend == "ddp":
        import slurm_ddp_torch

        if arguments.as_gloo:

            def create(options, backend_options):
                return slurm_ddp_torch.create(options, backend_options, name="gloo")

            dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(create, True)
    from torch.testing._internal.distributed import distributed_test

    if arguments.backend == "ddp" and not arguments.as_gloo:
        distributed_test.BACKEND = TakenForGloo("ddp")
    return distributed_test


def test_class(module):
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestDistributed(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # A fork needs 0.5 s for a test, a new Python 10 s.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    # The parent only waits for the ranks.
    assert issubclass(TestDistributed, MultiProcessTestCase)
    return TestDistributed


class Lines(unittest.TestResult):
    """Writes one line for each test."""

    def say(self, test, word, reason=""):
        reason = " ".join(reason.split())[:300]
        print(f"{test.id().rsplit('.', 1)[-1]} {word} {reason}".rstrip(), flush=True)

    def addSuccess(self, test):
        self.say(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say(test, "skipped", reason)

    def addError(self, test, err):
        super().addError(test, err)
        self.say(test, "failed", str(err[1]))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(test, "failed", str(err[1]))


def run(arguments):
    module = prepare(arguments)
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(test_class(module))
    chosen = [test for test in tests if arguments.only in test.id()]
    if arguments.as_gloo:
        chosen = [test for test in chosen if "DistributedDataParallel" not in test.id() and "_ddp" not in test.id()]
    result = Lines()
    for test in chosen:
        test(result)
    return 1 if result.failures or result.errors else 0


def compare(names):
    """Says what gloo, the first file, passes and the others do not."""
    tables = []
    for name in names:
        with open(name) as file:
            lines = [line.split(" ", 2) for line in file if line.startswith("test_")]
        tables.append({line[0]: (line[1].strip(), line[2].strip() if len(line) > 2 else "") for line in lines})
        words = [word for word, _ in tables[-1].values()]
        print(f"{name}: {len(words)} tests,", *(f"{words.count(w)} {w}," for w in ("passed", "skipped", "failed")))
    lacking = 0
    for name, table in zip(names[1:], tables[1:]):
        for test, (word, _) in tables[0].items():
            if word == "passed" and table.get(test, ("left out", ""))[0] != "passed":
                print(f"{name}: {test}:", KNOWN.get(test, ""), *table.get(test, ("left out", "")))
                lacking += table.get(test, ("left out", ""))[0] != "left out" and test not in KNOWN
        for test, (word, reason) in table.items():
            if word == "failed" and tables[0].get(test, ("", ""))[0] != "passed":
                print(f"{name}: {test}: failed, which gloo skips: {reason}")
                lacking += 1
    return 1 if lacking else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=("gloo", "ddp"), default="ddp")
    parser.add_argument("--as-gloo", action="store_true")
    parser.add_argument("--only", default="", help="tests whose name has this")
    parser.add_argument("--timeout", type=int, default=100, help="seconds for one test")
    parser.add_argument("--compare", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    sys.exit(compare(arguments.compare) if arguments.compare else run(arguments))


if __name__ == "__main__":
    main()
