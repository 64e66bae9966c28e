#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""should_stop(): all ranks stop at the same call, whichever rank has heard of it; who does not know the key is kept out."""
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from support import Forked, environment, main, needs_torch

from slurm_ddp import agreement

LOOP = """
import os, sys, time, random
import slurm_ddp
rank, folder = int(os.environ["RANK"]), sys.argv[1]
calls = 0
while not slurm_ddp.should_stop(margin=5):
    calls += 1
    if calls == 3:
        open(os.path.join(folder, "up%d" % rank), "w").close()
    time.sleep(random.random() * 0.02)
print(calls, flush=True)
time.sleep(float(sys.argv[2]) * rank)
"""
RENEWS = """
import gc, signal, sys, time, weakref
sys.path.append(%r)
from support import pipes
import slurm_ddp
from slurm_ddp import stopping
slurm_ddp.should_stop(margin=5)
before, old = pipes(), []
for number in range(3):
    old.append(weakref.ref(stopping.link()))
    stopping.renew(b"%%d" %% number)
    stopping.count()
assert pipes() == before, "%%d pipes, not %%d" %% (pipes(), before)
while any(each() for each in old):  # a thread may still shake hands
    time.sleep(0.05)
    gc.collect()
assert signal.set_wakeup_fd(-1) == stopping.link().wake_write
signal.set_wakeup_fd(stopping.link().wake_write)
def stop_at(calls, last):
    if calls == last and slurm_ddp.job().rank == 1:
        signal.raise_signal(signal.SIGTERM)
""" % str(Path(__file__).resolve().parent)
KEY = "step:" + "ab" * 32


class Ranks:
    def __init__(self, test, world, program=LOOP, after=0.0, forked=False, **more):
        self.folder = tempfile.TemporaryDirectory()
        test.addCleanup(self.folder.cleanup)
        key = "step:%032x%032x" % (random.getrandbits(128), random.getrandbits(128))
        path = Path(self.folder.name, "train.py")
        path.write_text(program)
        self.command = [sys.executable, str(path), self.folder.name, str(after)]
        self.forked = forked
        self.variables = {"WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "DDP_KEY": key, **more}
        self.ranks = [self.start(rank) for rank in range(world)]
        test.addCleanup(self.kill)

    def start(self, rank, **more):
        variables = {"RANK": rank, **self.variables, **more}
        if self.forked:
            return Forked(self.command[1], self.command[2:], environment(**variables))
        return subprocess.Popen(self.command, text=True, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                pass_fds=[variables["DDP_PROGRESS_FD"]] if "DDP_PROGRESS_FD" in variables else [])

    def kill(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()

    def await_up(self):
        deadline = time.monotonic() + 120
        while any(not Path(self.folder.name, f"up{rank}").exists() for rank in range(len(self.ranks))):
            assert time.monotonic() < deadline, [rank.poll() for rank in self.ranks]
            time.sleep(0.02)

    def ends_of(self, rank):
        process = self.ranks[rank]
        return process.wait(120), process.stdout.read().strip(), process.stderr.read()

    def ends(self):
        return [self.ends_of(rank) for rank in range(len(self.ranks))]


class Stop(unittest.TestCase):
    def check_same(self, ranks):
        ends = ranks.ends()
        self.assertEqual({end[0] for end in ends}, {0}, ends)
        self.assertEqual(len({end[1] for end in ends}), 1, ends)
        self.assertGreaterEqual(int(ends[0][1]), 3)

    def test_ranks_stop_at_the_same_call_whoever_heard(self):
        for rank, number in ((0, signal.SIGTERM), (2, signal.SIGUSR1), (3, signal.SIGTERM)):
            ranks = Ranks(self, 4, after=0.05)
            ranks.await_up()
            ranks.ranks[rank].send_signal(number)
            self.check_same(ranks)

    def test_ranks_stop_at_the_same_call_if_all_heard(self):
        ranks = Ranks(self, 4)
        ranks.await_up()
        for rank in ranks.ranks:
            rank.send_signal(signal.SIGTERM)
        self.check_same(ranks)

    def test_ranks_that_meet_anew_keep_nothing_of_before(self):
        loop = LOOP.replace("calls += 1", "calls += 1\n    stop_at(calls, 20)")
        self.check_same(Ranks(self, 2, program=RENEWS + loop))

    def test_ranks_stop_before_the_time_limit(self):
        ranks = Ranks(self, 3, SLURM_JOB_ID=7, SLURM_JOB_END_TIME=int(time.time()) + 8)
        ranks.await_up()
        self.check_same(ranks)

    def test_one_rank_stops_by_itself(self):
        ranks = Ranks(self, 1)
        ranks.await_up()
        ranks.ranks[0].send_signal(signal.SIGUSR1)
        self.check_same(ranks)

    def test_late_rank_is_waited_for(self):
        late = LOOP.replace("calls = 0", "calls = 0\nif rank == 1: time.sleep(1.5)\nopen(os.path.join(folder, 'begun%d' % rank), "
                            "'w').close()", 1)
        ranks = Ranks(self, 2, program=late)
        while not Path(ranks.folder.name, "up0").exists():
            time.sleep(0.02)
        ranks.ranks[0].send_signal(signal.SIGTERM)
        self.check_same(ranks)

    def test_rank_that_waits_in_c_ends_when_the_step_fails(self):
        # Handlers of Python's do not run while it waits for this mutex.
        program = LOOP.replace("    time.sleep(random.random() * 0.02)", """
    from slurm_ddp import stopping
    while not stopping._stop.agreement.links:
        time.sleep(0.01)
    waits = os.path.join(folder, "waits")
    while rank == 1:
        if os.path.exists(waits):
            os._exit(3)
        time.sleep(0.01)
    open(waits, "w").close()
    import ctypes
    mutex = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
""")
        ranks = Ranks(self, 2, program=program)
        self.assertEqual(ranks.ranks[1].wait(60), 3)
        while not Path(ranks.folder.name, "waits").exists():
            time.sleep(0.02)
        begun = time.monotonic()
        ranks.ranks[0].send_signal(signal.SIGTERM)
        self.assertEqual(ranks.ranks[0].wait(60), 143)
        self.assertLess(time.monotonic() - begun, 50)

    def test_forked_child_keeps_its_signals(self):
        program = LOOP.replace("    if calls == 3:", """    if calls == 2:
        child = os.fork()
        if child == 0:
            time.sleep(100)
        time.sleep(0.3) # Python forgets signals that come before the child has begun
        os.kill(child, 15)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 15
        time.sleep(0.5)
    if calls == 60:
        os.kill(os.getpid(), 10)
    if calls == 3:""")
        ranks = Ranks(self, 2, program=program)
        ends = ranks.ends()
        self.assertEqual({end[0] for end in ends}, {0}, ends)
        self.assertGreaterEqual(int(ends[0][1]), 60)

    def test_ranks_leave_together(self):
        program = LOOP.replace("print(calls, flush=True)", """
if rank == 2:
    time.sleep(1)
    open(os.path.join(folder, "saved"), "w").close()
before = os.path.exists(os.path.join(folder, "saved"))
try:
    slurm_ddp.exit_for_requeue()
except SystemExit as leaves:
    print(leaves.code, os.path.exists(os.path.join(folder, "saved")), flush=True)
""")
        ranks = Ranks(self, 3, program=program)
        ranks.await_up()
        ranks.ranks[1].send_signal(signal.SIGTERM)
        self.assertEqual({end[1] for end in ranks.ends()}, {"75 True"})

    def test_handler_of_the_program_is_called_too(self):
        program = LOOP.replace("calls = 0", "import signal\nsignal.signal(signal.SIGUSR1, lambda *x: print('own'))\ncalls = 0", 1)
        ranks = Ranks(self, 1, program=program)
        ranks.await_up()
        ranks.ranks[0].send_signal(signal.SIGUSR1)
        self.assertRegex(ranks.ends()[0][1], r"^own\n\d+$")

    @needs_torch
    def test_without_a_key_torch_decides(self):
        program = ("import os, sys, torch.distributed as dist\ndist.init_process_group('gloo', init_method='file://' + sys.argv[1] "
                   "+ '/store', rank=int(os.environ['RANK']), world_size=2)\n" + LOOP)
        ranks = Ranks(self, 2, program=program, forked=True, DDP_KEY="")
        ranks.await_up()
        ranks.ranks[1].send_signal(signal.SIGTERM)
        self.check_same(ranks)


class Strangers(unittest.TestCase):
    def setUp(self):
        self.key = b"step:%032x" % random.getrandbits(128)
        self.rank0 = agreement.Agreement(0, 3, "127.0.0.1", self.key)
        self.addCleanup(self.rank0.end)
        deadline = time.monotonic() + 60
        while True:
            try:
                agreement.connect("127.0.0.1", agreement.ports(self.key)[0], self.key, 1).close()
                break
            except OSError:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)

    def test_offer_that_fails_is_answered(self):
        self.rank0.offer(7, lambda: 1 // 0)
        follower = agreement.Agreement(2, 3, "127.0.0.1", self.key)
        self.addCleanup(follower.end)
        self.assertEqual(follower.ask(7, 60), agreement.UNREADABLE)

    def test_wrong_key_is_refused_by_both_sides(self):
        port = agreement.ports(self.key)[0]
        with self.assertRaises(OSError):
            agreement.connect("127.0.0.1", port, b"another key", 2)
        self.assertNotIn(2, self.rank0.links)

    def test_noise_and_silence_keep_nobody_out(self):
        port, silent = agreement.ports(self.key)[0], []
        for _ in range(20):
            silent.append(socket.create_connection(("127.0.0.1", port)))
            silent[-1].sendall(os.urandom(200))
        silent += [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        link = agreement.connect("127.0.0.1", port, self.key, 2)
        link.close()
        for connection in silent:
            connection.close()
        self.assertTrue(self.rank0.thread.is_alive())

    def test_rank_is_let_in_if_no_thread_can_be_started(self):
        with mock.patch.object(agreement.threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            agreement.connect("127.0.0.1", agreement.ports(self.key)[0], self.key, 2).close()
        self.assertTrue(self.rank0.thread.is_alive())

    def test_changed_and_repeated_messages_end_the_connection(self):
        port = agreement.ports(self.key)[0]
        link = agreement.connect("127.0.0.1", port, self.key, 2)
        body = agreement._FRAME.pack(agreement.HEARD, 0, 0)
        link.connection.sendall(body + bytes(16))
        with self.assertRaises((ConnectionError, OSError)):
            while link.read(b"down"):
                pass
        link.close()
        self.assertFalse(self.rank0.heard)

    def test_number_of_no_rank_is_refused(self):
        for number in (0, 3, 77):
            with self.assertRaises(OSError):
                agreement.connect("127.0.0.1", agreement.ports(self.key)[0], self.key, number)


if __name__ == "__main__":
    main()
