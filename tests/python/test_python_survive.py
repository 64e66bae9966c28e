#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Survivors: ranks agree on who is left, also if one of them ends, stops, or cannot connect. There is no torch in it."""
import errno
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
import unittest
from unittest import mock

from support import main, needs_torch, pipes
from test_python_stop import Ranks

from slurm_ddp import agreement, page
from slurm_ddp.survive import _broadcast
from slurm_ddp.survivors import GO, Report, Survivors

# Of four ranks, rank 3 dies in step 4 while rank 1 waits in a group of its own, and rank 2 dies behind the last step.
LOOP = """
import os, signal, time
import torch, torch.distributed as dist
import slurm_ddp
me, failing = slurm_ddp.job().rank, os.environ.get("FAILING")
def wrap(module, **more):
    global failing
    if failing and failing != "group" and me == 1 and more and (failing != "end" or run.step == 6):
        if failing == "once":
            failing = None
            raise RuntimeError("gloo: Connection closed by peer")
        raise KeyError("own error")
    return torch.nn.parallel.DistributedDataParallel(module, **more)
def init(*arguments, inner=dist.init_process_group, c10d=dist.distributed_c10d, **keywords):
    global failing
    inner(*arguments, **keywords)
    if failing == "group" and me == 1 and "store" in keywords:  # as if only this rank could not make it: torch has counted it
        failing, where = None, getattr(c10d, "_world", c10d)
        dist.destroy_process_group()
        setattr(where, "_group_count" if where is c10d else "group_count", 1)
        raise RuntimeError("gloo: Connection closed by peer")
dist.init_process_group = init
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(net.parameters())
run = slurm_ddp.survive(net, optimizer, wrap=wrap, backend="gloo", timeout=100)
run._rewrap = run._rewrap or {"bucket_cap_mb": 1}
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
pair = dist.new_group([0, 1])
for step in run.steps(6):
    with run as model:
        if step == 4 and me == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 4 and me == 1 and run.world_size == 4:
            dist.all_reduce(torch.ones(1), group=pair)
        loss = model(torch.ones(4, 8)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if run.step == 6 and me == 2:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
print(run.step, run.world_size)
"""

# With restart=: rank 1 dies in step 3, of which rank 0 has all gradients, and rank 0 before the sums of step 5.
RENEWED = """
import hashlib, os, signal, sys
import torch
import slurm_ddp
me, dies = slurm_ddp.job().rank, int(os.environ.get("DIES", 0))
torch.manual_seed(me)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters())
x = torch.randn(100, 8, generator=torch.Generator().manual_seed(7))
run = slurm_ddp.survive(net, optimizer, backend="gloo", timeout=100)
run._join_seconds = float(os.environ.get("JOIN_SECONDS", 100))
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
run._state += (scheduler,)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_sampler=run.sampler(100, 12, seed=1))
assert (run.rank, run.world_size) == (me, 2)
slurm_ddp.Checkpoint(os.path.join(sys.argv[1], "saved")).latest()  # a newcomer asks rank 0
for step, (x,) in run.batches(loader, 1000):
    with run as model:
        loss = model(x).square().sum()
        optimizer.zero_grad()
        if (dies, step) == (5, 5):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        if (dies, step) == (3, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()
    if run.step == step:
        bits = b"".join(each.detach().numpy().tobytes() for each in net.parameters())
        print(step, loss.item().hex(), hashlib.sha256(bits).hexdigest(), scheduler.get_last_lr(), flush=True)
    if step == 8 and me == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    if slurm_ddp.should_stop():
        break
print("stopped behind", run.step)
"""
FORK = multiprocessing.get_context("fork")


class World:
    """Ranks in processes of their own. Each runs function(survivors), and its result is a text."""

    def __init__(self, test, size, function, nodes=None):
        self.barrier, self.size = FORK.Barrier(size), size
        self.nodes = nodes or ["n0"] * size
        self.shelves, self.queues = FORK.Manager(), [FORK.Queue() for _ in range(size)]
        self.shelf = self.shelves.dict()
        self.ranks = [FORK.Process(target=self.run, args=(rank, function), daemon=True) for rank in range(size)]
        test.addCleanup(self.kill)
        for rank in self.ranks:
            rank.start()

    def run(self, rank, function):
        calls = [0]

        def gather(value):
            calls[0] += 1
            self.shelf[calls[0], rank] = value
            self.barrier.wait(60)
            return [self.shelf[calls[0], each] for each in range(self.size)]

        os.environ.update(MASTER_ADDR="127.0.0.1", DDP_KEY="step:" + "ab" * 32, DDP_SILENCE="2", DDP_NODE_NAME=self.nodes[rank])
        found = Survivors(rank, self.size, gather, lambda: 4711, lambda: None)
        self.barrier.wait(60)
        try:
            said = str(function(found))
        except RuntimeError as error:
            said = "error: %s" % error
        self.queues[rank].put(said)

    def said(self, rank):
        return self.queues[rank].get(timeout=60)

    def kill(self):
        for rank in self.ranks:
            if rank.is_alive():
                os.kill(rank.pid, signal.SIGKILL)
            rank.join()
        self.shelves.shutdown()


def report(found):
    plan = found.agree(Report(7, True, False))
    return "%s by %s" % (list(plan.members), plan.port)


class Restarting(Ranks):
    """Two ranks of a node, and srun's part of a step with restart=."""

    def __init__(self, test, **more):
        self.descriptor = os.memfd_create("ddp_progress")
        os.ftruncate(self.descriptor, 3 * page.PAGE_BYTES)
        self.memory = mmap.mmap(self.descriptor, 3 * page.PAGE_BYTES)
        super().__init__(test, 2, program=RENEWED, forked=True, MASTER_PORT=free_port(), DDP_SILENCE=2, OMP_NUM_THREADS=1, LOCAL_WORLD_SIZE=2,
                         DDP_PROGRESS_FD=self.descriptor, TORCHELASTIC_MAX_RESTARTS=9, DDP_JOINS=0, **more)

    def start(self, rank, **more):
        return super().start(rank, LOCAL_RANK=rank, **{"DIES": self.variables.get("DIES%d" % rank, 0), **more})

    def survives(self, rank):
        slots = [page.Slot(self.memory, rank * page.PAGE_BYTES + number * page.SLOT_BYTES) for number in range(page.SLOTS)]
        return any(slot.get("magic") == page.MAGIC and slot.get("aside") & page.SURVIVES for slot in slots)

    def forget(self, rank):
        for number in range(page.SLOTS):
            page.Slot(self.memory, rank * page.PAGE_BYTES + number * page.SLOT_BYTES).set("aside", 0)

    def go_on(self, generation, rank, starts=True):
        """The rank has ended. All meet again, and another process takes its place."""
        self.ranks[rank].wait(120)
        assert self.survives(1 - rank) and self.survives(rank)
        self.forget(1 - rank)
        key, port, (offset, form) = os.urandom(32).hex(), free_port(), page.DEAL
        struct.pack_into(form, self.memory, 2 * page.PAGE_BYTES + offset, 0, generation - 1, port, b"127.0.0.1", key.encode())
        struct.pack_into("=I", self.memory, 2 * page.PAGE_BYTES + offset, generation)
        if starts:
            self.memory[rank * page.PAGE_BYTES:(rank + 1) * page.PAGE_BYTES] = bytes(page.PAGE_BYTES)
            self.ranks[rank] = self.start(rank, MASTER_PORT=port, DDP_KEY="step:" + key, DDP_JOINS=generation, DIES=0)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Survive(unittest.TestCase):
    def test_others_go_on_without_a_rank_that_cannot(self):
        def function(found):
            if found.rank == 2:
                found.close(False)
                return "left"
            found.wait_for_loss()
            return report(found)

        world = World(self, 4, function)
        self.assertEqual([world.said(rank) for rank in (0, 1, 3)], ["[0, 1, 3] by 4711"] * 3)

    def test_rank_that_cannot_connect_loses_nobody(self):
        def function(found):
            if found.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if found.rank == 2:
                with mock.patch("socket.create_connection", side_effect=error):
                    found.wait_for_loss()
                    return report(found)
            return report(found)

        for error in (OSError(errno.EMFILE, "Too many open files"), socket.gaierror(-2, "Name or service not known")):
            world = World(self, 4, function, nodes=["n0", "n1", "n2", "n1"])
            self.assertIn("error: rank 2 on n2 cannot connect to rank 1 on n1: ", world.said(2))
            self.assertEqual([world.said(rank) for rank in (1, 3)], ["[1, 3] by 4711"] * 2)

    def test_dead_node_is_tried_once(self):
        tried = []

        def create(address, timeout):
            tried.append(address)
            raise socket.timeout("timed out")

        def function(found):
            if found.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if found.rank > 1:
                time.sleep(3600)
            # Ranks of n1 have not come, and do not answer.
            with mock.patch("socket.create_connection", create), mock.patch.object(found, "_adopt"):
                plan = report(found)
            return plan, len(tried)

        world = World(self, 5, function, nodes=["n0", "n0", "n1", "n1", "n1"])
        self.assertEqual(world.said(1), "('[1] by 4711', 1)")

    def test_rank_that_comes_late_learns_who_is_lost(self):
        def function(found):
            if found.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            if found.rank == 2:
                while 1 not in found.links:
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
            if found.rank == 1:
                while 2 not in found.gone:
                    time.sleep(0.01)
                lost.set()
            return report(found), {0, 2} <= set(found.gone)

        def late(found, connect=Survivors._connect):
            if found.rank == 3 and 0 in found.gone:
                lost.wait(60)
            return lambda rank: connect(found, rank)

        lost = FORK.Event()
        with mock.patch.object(Survivors, "_connect", property(late)):
            world = World(self, 4, function)
        self.assertEqual([world.said(rank) for rank in (1, 3)], ["('[1, 3] by 4711', True)"] * 2)

    def test_ranks_agree_again_if_one_asks(self):
        def function(found):
            if found.rank == 2:
                found.close(False)
                return "left"
            found.wait_for_loss()
            begin, said = time.monotonic(), [report(found)]
            for asking in (0, 3):
                if found.rank == asking:
                    found.ask_again()
                else:
                    found.wait_for_loss()
                said.append(report(found))
            return said, time.monotonic() - begin < found.silence

        world = World(self, 4, function)
        said = str((["[0, 1, 3] by 4711"] * 3, True))
        self.assertEqual([world.said(rank) for rank in (0, 1, 3)], [said] * 3)

    def test_ranks_agree_again_after_a_leader_that_has_told_some(self):
        def function(found, send=Survivors._send):
            def tell(link, kind, *more):
                if kind != GO or link.rank == told:
                    send(found, link, kind, *more)
                if kind == GO and link.rank == told:
                    os.kill(os.getpid(), signal.SIGKILL)

            if found.rank == 0:
                found._send = tell
            said = [report(found)]
            if found.rank == told:
                said.append(found.wait_for_loss() and report(found))
            if found.rank == asking:
                found.ask_again()
            return said[-1], found.wait_for_loss(), report(found)

        for told, asking in ((1, 2), (2, 1), (1, 1), (2, 2)):
            world = World(self, 3, function)
            self.assertEqual([world.said(rank) for rank in (1, 2)], [str(("[1, 2] by 4711", True, "[1, 2] by 4711"))] * 2)

    def test_rank_that_counts_as_lost_is_told(self):
        def function(found):
            if found.rank == 1:
                # It counts as lost for rank 2 alone, and takes rank 2 for the leader.
                time.sleep(0.5)
                with found.condition:
                    found._note([0])
                found.addresses[1], found.ports[1] = found.addresses[2], found.ports[2]
                found._leader = lambda: 2
                return report(found)
            if found.rank == 2:
                found.gone[1] = "is silent"
            time.sleep(20)
            return None

        world = World(self, 3, function)
        self.assertIn("error: rank 1 on n0 counts as lost", world.said(1))

    def test_close_waits_for_the_thread_and_its_pipe(self):
        def function(found):
            if found.rank == 0:
                ready.wait(60)
                os.kill(os.getpid(), signal.SIGKILL)
            before = pipes()
            if found.rank == 1:
                waits = threading.Event()
                found.on_broken = lambda: waits.set() or time.sleep(3600)
                waits.wait(60)
                return found.close(False, 0.2), before - pipes()
            silent = socket.create_server(("127.0.0.1", 0))
            found.ports[1] = silent.getsockname()[1]
            ready.set()
            with mock.patch.object(agreement, "_HANDSHAKE_SECONDS", 1.0):
                connection = silent.accept()
                return found.close(False, 20), before - pipes(), found.close(False), bool(connection)

        ready = FORK.Event()
        world = World(self, 3, function)
        self.assertEqual([world.said(rank) for rank in (1, 2)], ["(False, 0)", "(True, 2, True, True)"])

    def test_connections_are_known_by_more_than_their_ports(self):
        def function(found):
            own = [link.connection for link in found.links.values()]
            listener = socket.create_server(("127.0.0.1", 0))
            other = socket.create_connection(listener.getsockname())
            found.ports = [listener.getsockname()[1]] * 2
            said = [found.is_own(socket.socket(fileno=os.dup(each.fileno()))) for each in own + [other]]
            both.wait(60)  # the end of one closes the other's
            return said

        both = FORK.Barrier(2)
        world = World(self, 2, function)
        self.assertEqual([world.said(rank) for rank in range(2)], ["[True, False]"] * 2)

    def test_stop_agreement_proves_nothing_here(self):
        def function(found):
            if found.rank == 1:
                try:
                    agreement.connect("127.0.0.1", found.ports[0], os.environ["DDP_KEY"].encode(), 1)
                except ConnectionError as error:
                    return error
            time.sleep(1)
            return "taken"

        self.assertEqual(World(self, 2, function).said(1), "closed")

    def start(self, **more):
        return Ranks(self, 4, program=LOOP, forked=True, MASTER_PORT=free_port(), DDP_SILENCE=2, OMP_NUM_THREADS=1, LOCAL_WORLD_SIZE=4, **more)

    @needs_torch
    def test_empty_tensors_do_not_travel(self):
        import torch
        for sizes, count in (((0, 9), 1), ((9, 0), 1), ((0, 0), 0), ((3, 0, 0, 9, 0), 2)):
            dist = mock.Mock(**{"get_rank.return_value": 0})
            with mock.patch("slurm_ddp.survive._PARCEL_BYTES", 32):
                _broadcast(dist, [torch.ones(size) for size in sizes], 0, "cpu")
            self.assertEqual(dist.broadcast.call_count, count)

    @needs_torch
    def test_training_goes_on_and_ends(self):
        ranks = self.start()
        code, said, errors = ranks.ends_of(0)
        self.assertEqual((code, said), (0, "6 2"), errors)
        self.assertRegex(errors, "rank 3 on .* has ended; 3 of 4 ranks go on with step 4, ")
        self.assertRegex(errors, "rank 2 on .* has ended; 2 of 3 ranks have ended all steps, ")
        self.assertEqual(ranks.ends_of(1)[:2], (0, "6 2"))

    @needs_torch
    def test_nobody_is_lost_if_a_group_fails_once(self):
        for when in ("once", "group"):
            ranks = self.start(FAILING=when)
            code, said, errors = ranks.ends_of(1)
            self.assertEqual((code, said), (0, "6 2"), errors)
            self.assertRegex(ranks.ends_of(0)[2], "rank 3 on .* has ended; 3 of 4 ranks go on with step 4, ")

    @needs_torch
    def test_others_do_not_wait_for_a_rank_with_an_error_of_its_own(self):
        ranks = self.start(FAILING="1")
        self.assertRegex(ranks.ends_of(1)[2], "rank 1 cannot go on without the ranks that are lost: .*own error")
        code, said, errors = ranks.ends_of(0)
        self.assertEqual((code, said), (0, "6 1"), errors)
        self.assertRegex(errors, "rank 1 on .* has ended; ")

    @needs_torch
    def test_rank_with_an_error_behind_the_last_step_says_so(self):
        ranks = self.start(FAILING="end")
        said = "rank 1 cannot go on without the ranks that are lost: 'own error'; go back to the last checkpoint"
        self.assertIn(said, ranks.ends_of(1)[2])
        self.assertEqual(ranks.ends_of(0)[:2], (0, "6 1"))

    @needs_torch
    def test_newcomers_join_those_that_are_left(self):
        undisturbed, ranks = Restarting(self), Restarting(self, DIES0=5, DIES1=3)
        ranks.go_on(2, 1)
        code, said, errors = ranks.ends_of(0)
        self.assertEqual(code, -signal.SIGKILL, errors)
        self.assertRegex(errors, "rank 1 on .* joined; all 2 ranks go on with step 4, after ")
        before = said.splitlines()
        ranks.go_on(3, 0)
        ends, wanted = ranks.ends(), undisturbed.ends()
        self.assertEqual([code for code, _, _ in ends + wanted], [0] * 4, ends + wanted)
        steps = [[line for line in said.splitlines() if line[0] != "s"] for _, said, _ in ends + wanted]
        # When they stop after a signal depends on the time, but all do so behind the same step.
        self.assertEqual(*(said.splitlines()[-1] for _, said, _ in ends))
        count = min(int(steps[number][-1].split()[0]) for number in range(4))
        self.assertGreater(count, 8)
        self.assertEqual((before + steps[0])[:count], steps[2][:count])  # each step counts once
        self.assertEqual(steps[1][:count - 3], steps[3][3:count])
        self.assertRegex(ends[1][2], "rank 0 on .* joined; all 2 ranks go on with step 5, after ")

    @needs_torch
    def test_newcomer_that_has_asked_for_a_checkpoint_stops_with_the_others(self):
        ranks = Restarting(self, DIES1=3)
        ranks.go_on(2, 1)
        ends = ranks.ends()
        self.assertEqual([(code, "cannot agree" in errors) for code, _, errors in ends], [(0, False)] * 2, ends)
        self.assertEqual(*(said.splitlines()[-1] for _, said, _ in ends))
        self.assertNotEqual(ends[0][1].splitlines()[-1], "stopped behind 1000")

    @needs_torch
    def test_newcomer_that_does_not_come_is_named(self):
        ranks = Restarting(self, DIES1=3, JOIN_SECONDS=1.5)
        ranks.go_on(2, 1, starts=False)
        said = "rank 0 cannot go on with ranks in place of lost ones: rank 1 did not come within 1.5 s"
        self.assertIn(said, ranks.ends_of(0)[2])
        self.assertFalse(ranks.survives(0))


if __name__ == "__main__":
    main()
