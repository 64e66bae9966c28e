#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# runs: unit
"""Survivors: ranks agree on who is left, also if one of them ends, stops, or cannot connect. There is no torch in it."""
import errno
import multiprocessing
import os
import signal
import socket
import time
import unittest
from unittest import mock

from support import main, needs_torch
from test_python_stop import Ranks

from slurm_ddp import agreement
from slurm_ddp.survivors import Report, Survivors

# Of four ranks, rank 3 dies in step 4 while rank 1 waits in a group of its own, and rank 2 dies behind the last step.
LOOP = """
import os, signal, time
import torch, torch.distributed as dist
import slurm_ddp
me, failing = slurm_ddp.job().rank, os.environ.get("FAILING")
def wrap(module, **more):
    if failing and me == 1 and more:
        raise KeyError("own error")
    return torch.nn.parallel.DistributedDataParallel(module, **more)
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

    def test_connections_are_known_by_more_than_their_ports(self):
        def function(found):
            own = [link.connection for link in found.links.values()]
            listener = socket.create_server(("127.0.0.1", 0))
            other = socket.create_connection(listener.getsockname())
            found.ports = [listener.getsockname()[1]] * 2
            return [found.is_own(socket.socket(fileno=os.dup(each.fileno()))) for each in own + [other]]

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
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        return Ranks(self, 4, program=LOOP, forked=True, MASTER_PORT=port, DDP_SILENCE=2, OMP_NUM_THREADS=1, LOCAL_WORLD_SIZE=4, **more)

    @needs_torch
    def test_training_goes_on_and_ends(self):
        ranks = self.start()
        code, said, errors = ranks.ends_of(0)
        self.assertEqual((code, said), (0, "6 2"), errors)
        self.assertRegex(errors, "rank 3 on .* has ended; 3 of 4 ranks go on with step 4, ")
        self.assertRegex(errors, "rank 2 on .* has ended; 2 of 3 ranks have ended all steps, ")
        self.assertEqual(ranks.ends_of(1)[:2], (0, "6 2"))

    @needs_torch
    def test_others_do_not_wait_for_a_rank_with_an_error_of_its_own(self):
        ranks = self.start(FAILING="1")
        self.assertRegex(ranks.ends_of(1)[2], "rank 1 cannot go on without the ranks that are lost: .*own error")
        code, said, errors = ranks.ends_of(0)
        self.assertEqual((code, said), (0, "6 1"), errors)
        self.assertRegex(errors, "rank 1 on .* has ended; ")


if __name__ == "__main__":
    main()
