# SPDX-License-Identifier: Apache-2.0
"""A contender's ranks: started once, then driven by the commands of rank.h."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time


class ContenderFailed(Exception):
    """A contender could not start, died, or gave a wrong answer. Says why."""


class ContenderMissing(ContenderFailed):
    """A contender is not installed, or was not built."""


class ContenderHung(ContenderFailed):
    """A contender was ended at its limit. `output` is what it had printed."""

    def __init__(self, text, output):
        super().__init__(text)
        self.output = output


def end_by_signals():
    """SIGTERM and SIGHUP end the program as Ctrl-C does: ranks are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda which, _: sys.exit(128 + which))


class Group:
    """The ranks of one contender, waiting for commands without using a core.

    `argv` starts all `ranks`, each of which opens the pipe
    BENCH_COMMANDS.RANK, and BENCH_ANSWERS for what it says (rank.h tells why);
    log is the file that gets what they and their launcher print.
    """

    def __init__(self, name, argv, ranks, folder, env=None, start_timeout_s=90):
        self.name, self.ranks = name, ranks
        self.log = os.path.join(folder, f"{name}.log")
        self._prefix = os.path.join(folder, f"{name}.commands")
        self._answers = os.path.join(folder, f"{name}.answers")
        self._lines = queue.Queue()
        self._pipes = []
        self._process = None
        try:
            self._start(argv, env or {})
            self._gather("ready", start_timeout_s)
        except BaseException:
            self.stop()
            raise

    def _start(self, argv, env):
        for rank in range(self.ranks):
            path = f"{self._prefix}.{rank}"
            os.mkfifo(path, 0o600)
            # Open both ways: opening to write alone would wait for the rank.
            self._pipes.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        os.mkfifo(self._answers, 0o600)
        # The pipe ends when nobody can write: this end counts until ranks have theirs.
        keeper = os.open(self._answers, os.O_RDWR | os.O_CLOEXEC)
        answers = open(self._answers, "rb")
        with open(self.log, "wb") as log:
            try:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **env, "BENCH_COMMANDS": self._prefix, "BENCH_ANSWERS": self._answers},
                    start_new_session=True,
                )
            except OSError as error:
                answers.close()
                os.close(keeper)
                raise ContenderFailed(f"{self.name}: cannot start {argv[0]}: {error}") from error
        threading.Thread(target=self._await_end, args=(keeper,), daemon=True).start()
        threading.Thread(target=self._read, args=(answers,), daemon=True).start()

    def _await_end(self, keeper):
        self._process.wait()
        os.close(keeper)

    def _read(self, answers):
        with answers:
            for line in answers:
                self._lines.put(line.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)

    def _parse(self, line):
        """(rank, what it says, text) of a line; what it says may be an error."""
        words = line.split(maxsplit=3)
        if len(words) < 3 or words[0] != "@" or not words[1].isdecimal() or int(words[1]) >= self.ranks:
            raise ContenderFailed(f"{self.name}: no rank's answer: '{line[:80]}'" + self._tail())
        if words[2] == "error":
            raise ContenderFailed(f"{self.name}: rank {words[1]}: {' '.join(words[3:])}" + self._tail())
        return int(words[1]), words[2], words[3] if len(words) > 3 else ""

    def _integers(self, text):
        try:
            return [int(word) for word in text.split()]
        except ValueError:
            raise ContenderFailed(f"{self.name}: '{text[:80]}' should be whole numbers") from None

    def _tail(self):
        with open(self.log, errors="replace") as log:
            tail = " | ".join(log.read().strip().splitlines()[-4:])
        return f" ({tail})" if tail else ""

    def _gather(self, kind, timeout_s):
        """Waits until every rank has said `kind`; returns what each said on the
        way, as lists of (kind, text)."""
        deadline = time.monotonic() + timeout_s
        said = [[] for _ in range(self.ranks)]
        missing = set(range(self.ranks))
        while missing:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                ranks = ", ".join(map(str, sorted(missing)))
                raise ContenderFailed(
                    f"{self.name}: no '{kind}' within {timeout_s:.0f} s from ranks {ranks}" + self._tail()
                ) from None
            if line is None:
                raise ContenderFailed(f"{self.name}: its ranks ended before '{kind}'" + self._tail())
            rank, what, text = self._parse(line)
            said[rank].append((what, text))
            if what == kind:
                missing.discard(rank)
        return said

    def _command(self, text, timeout_s=60):
        for pipe in self._pipes:
            os.write(pipe, f"{text}\n".encode())
        return self._gather(text.split()[0], timeout_s)

    def open(self, count):
        self._command(f"open {count}")

    def check(self):
        """Reduces a known pattern; raises if an element is wrong on a rank."""
        for rank, said in enumerate(self._command("check")):
            if self._integers(said[-1][1]) != [-1]:
                raise ContenderFailed(f"{self.name}: rank {rank}: element {said[-1][1]} has a wrong sum")

    def run(self, batch, samples, expected_s=0.0, rewrite=False):
        """Seconds per operation of each batch: the slowest rank's. With `rewrite` ranks write their buffers before each
        operation, within its time."""
        said = self._command(f"run {batch} {samples} {int(rewrite)}", 60 + 10 * expected_s)
        times = [
            [ns for kind, text in of_rank if kind == "times" for ns in self._integers(text)]
            for of_rank in said
        ]
        if any(len(of_rank) != samples for of_rank in times):
            raise ContenderFailed(f"{self.name}: a rank did not give {samples} times")
        return [max(of_batch) * 1e-9 / batch for of_batch in zip(*times)]

    def close(self):
        self._command("close")

    def stop(self):
        """Ends the ranks: they leave when their commands end."""
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []
        if self._process is None:
            return
        for signal_number, patience_s in ((None, 15), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            if signal_number is not None:
                try:
                    os.killpg(self._process.pid, signal_number)
                except ProcessLookupError:
                    pass
            try:
                self._process.wait(patience_s)
                return
            except subprocess.TimeoutExpired:
                pass
