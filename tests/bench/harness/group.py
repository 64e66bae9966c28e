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


def end_by_signals():
    """SIGTERM and SIGHUP end the program as Ctrl-C does: ranks are stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda which, _: sys.exit(128 + which))


class Group:
    """The ranks of one contender, waiting for commands without using a core.

    `argv` starts all `ranks`, each of which opens the pipe
    BENCH_COMMANDS.RANK; log is the file that gets what they write to stderr.
    """

    def __init__(self, name, argv, ranks, folder, env=None, start_timeout_s=90):
        self.name, self.ranks = name, ranks
        self.log = os.path.join(folder, f"{name}.log")
        self._prefix = os.path.join(folder, f"{name}.commands")
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
        with open(self.log, "wb") as log:
            try:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **env, "BENCH_COMMANDS": self._prefix},
                    start_new_session=True,
                )
            except OSError as error:
                raise ContenderFailed(f"{self.name}: cannot start {argv[0]}: {error}") from error
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            words = line.decode(errors="replace").split(maxsplit=3)
            if len(words) >= 3 and words[0] == "@":
                self._lines.put((int(words[1]), words[2], words[3] if len(words) > 3 else ""))
        self._lines.put(None)

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
            rank, what, text = line
            if what == "error" or rank >= self.ranks:
                raise ContenderFailed(f"{self.name}: rank {rank}: {text}" + self._tail())
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
            wrong = int(said[-1][1])
            if wrong >= 0:
                raise ContenderFailed(f"{self.name}: rank {rank}: element {wrong} has a wrong sum")

    def run(self, batch, samples, expected_s=0.0):
        """Seconds per operation of each batch: the slowest rank's."""
        said = self._command(f"run {batch} {samples}", 60 + 10 * expected_s)
        times = [
            [int(ns) for kind, text in of_rank if kind == "times" for ns in text.split()]
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
