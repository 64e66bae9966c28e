# SPDX-License-Identifier: Apache-2.0
"""Callbacks, threads, signals and ends of groups and of processes: nothing hangs or crashes."""

import contextlib
import ctypes
import datetime
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

import torch
import torch.distributed as dist
from ranks import ABORTS, ALLOCATES, HAS_NETWORK, NEW, RECONFIGURES, BackendError, Ranks, RanksCase

import slurm_ddp_torch  # noqa: F401  pylint: disable=unused-import

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters  # Python before 3.13


def later(n=1000, group=None):
    return dist.all_reduce(torch.ones(n), group=group, async_op=True)


def callback_waits(rank, size):
    """A callback waits for operations that complete after its own."""

    def nested(depth):
        def callback(future):
            inner = later().get_future()
            if depth > 0:
                inner = inner.then(nested(depth - 1))
            inner.wait()
            return depth

        return callback

    for _ in range(20):
        assert later().get_future().then(nested(2)).wait() == 2
    return True


@contextlib.contextmanager
def no_further_thread():
    """A thread that starts meanwhile would need a stack that is larger than the address space."""
    libc, attributes, before = ctypes.CDLL(None), ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
    libc.pthread_getattr_default_np(before)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 60))
    libc.pthread_setattr_default_np(attributes)
    try:
        yield
    finally:
        libc.pthread_setattr_default_np(before)


def future_in_time(work):
    """A future completes a moment before the thread that ran its callbacks is free for the next one."""
    end = time.monotonic() + 30
    while True:
        try:
            return work.get_future()
        except RuntimeError as error:
            if "cannot start a thread" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def callback_without_a_thread(rank, size):
    """No thread can be started: a callback runs, and may wait, but gets no future whose own callbacks could not run."""

    def ask():
        dist.send(torch.ones(1), 1)

    def asked():
        return dist.irecv(torch.ones(1), 1)

    if rank == 1:
        for _ in range(4):
            dist.recv(torch.ones(1), 0)
            dist.send(torch.ones(1), 0)
        return True
    waits = asked().get_future().then(lambda future: [ask(), asked().wait(), 5][-1])
    with no_further_thread():
        ask()
        assert waits.wait() == 5
        refused = future_in_time(asked()).then(lambda future: asked().get_future())
        ask()
        try:
            refused.wait()
            return False
        except RuntimeError as error:
            assert "cannot start a thread" in str(error), error
        ask()  # nobody waits for the answer
    return True


def no_future_without_a_thread(rank, size):
    """If no thread can be started, nobody gets the first future; the operation ends, and so does one that nobody keeps."""
    t = torch.ones(3)
    work = dist.all_reduce(t, async_op=True)
    work.wait()  # libddp has its thread
    if rank == 1:
        dist.recv(torch.ones(1), 0)
    with no_further_thread():
        work = dist.all_reduce(t, async_op=True)
        later()
        try:
            if rank == 0:
                work.get_future()
                return False
        except BackendError as error:
            assert "cannot start a thread" in str(error), error
        if rank == 0:
            dist.send(torch.ones(1), 1)
        work.wait()
        later().wait()
    assert t[0].item() == size * size
    return later().get_future().then(lambda future: 5).wait() == 5


def subinterpreter_is_there(rank, size):
    """A program that makes a subinterpreter opens, uses and closes groups."""
    group = dist.new_group()
    interpreters.destroy(interpreters.create())
    later(group=group).get_future().then(lambda future: 5).wait()
    dist.destroy_process_group(group)
    group = dist.new_group()
    dist.all_reduce(torch.eye(3).to_sparse(), group=group)
    return True


def callback_calls(rank, size):
    """A callback issues a synchronous operation, and one raises."""
    seen = later().get_future().then(lambda f: dist.all_reduce(torch.ones(3)) or 5).wait()
    assert seen == 5

    def raises(future):
        raise ValueError("callback 42")

    try:
        later().get_future().then(raises).wait()
    except RuntimeError as error:  # torch's words around it
        assert "callback 42" in str(error)
    else:
        return False
    dist.all_reduce(torch.ones(1))
    return True


def callback_hears_of_the_end(rank, size):
    if rank == 1:
        dist.barrier()
        time.sleep(0.3)
        os._exit(0)
    dist.barrier()
    heard = []

    def callback(future):
        try:
            future.value()
        except RuntimeError as error:
            heard.append(str(error))
            raise

    last = later().get_future().then(callback)
    try:
        last.wait()
    except RuntimeError:
        pass
    assert len(heard) == 1 and "rank 1 on " in heard[0], heard
    return True


def two_threads(rank, size):
    """Each thread has its groups; their operations come in different orders on different ranks."""
    groups = [dist.new_group() for _ in range(3)]
    wrong = []

    def work(number):
        try:
            for i in range(200):
                t = torch.full((1 + i * 37 % 3000,), float(rank + number))
                if i % 3 == 0:
                    later = dist.all_reduce(t, group=groups[number], async_op=True)
                    later.wait()
                else:
                    dist.all_reduce(t, group=groups[number])
                assert t[0].item() == sum(r + number for r in range(size)), t
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    return True


def destroy_while_under_way(rank, size):
    """Rank 0 closes the group before rank 1 has come."""
    group = dist.new_group()
    t = torch.ones(200000)
    if rank == 0:
        work = dist.all_reduce(t, group=group, async_op=True)
        future = work.get_future()
        dist.destroy_process_group(group)
        future.wait()
        assert t[0].item() == size
    else:
        time.sleep(0.5)
        dist.all_reduce(t, group=group)
        dist.destroy_process_group(group)
    dist.barrier()
    return True


def destroy_without_the_others(rank, size):
    """Only rank 0 has issued the operation; both ranks close the group."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=20))
    if rank == 0:
        work = later(group=group)
    begin = time.monotonic()
    dist.destroy_process_group(group)
    assert time.monotonic() - begin < 60
    if rank == 0:
        try:
            work.wait()
            return False
        except BackendError:
            pass
    return True


def errors_name_torchs_functions(rank, size):
    """Errors say what a program of torch has called."""
    ranks = list(range(size))

    def heard(call):
        try:
            while True:
                call()
        except BackendError as error:
            assert "ddp_" not in str(error), error
            return str(error)

    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    if rank == 1:
        dist.destroy_process_group(group)
        del group  # which closes it with torch 1.13
    else:
        said = heard(lambda: dist.all_reduce(torch.ones(1), group=group))
        assert re.search("rank 1 on .* (issued destroy_process_group.., but|has closed its process group)", said), said
    # Members of a group that name different ranks.
    _C, store = slurm_ddp_torch._C, dist.distributed_c10d._get_default_store()
    dist.barrier()
    listed = ranks if rank < size - 1 else ranks[::-1]
    said = heard(lambda: _C.create(store, listed.index(rank), size, datetime.timedelta(seconds=60), "ddp", "odd", listed))
    assert re.search(r"new_group\(\) or split_group\(\): rank \d on .* and rank \d on .* list different ranks", said), said
    dist.destroy_process_group()
    return True


def errors_name_the_end(rank, size):
    dist.barrier()
    if rank != 1:
        try:
            dist.all_reduce(torch.ones(1))
        except BackendError as error:
            words = "rank 1 on .* (issued destroy_process_group.. or the end of its program, but|has closed its process group)"
            assert re.search(words, str(error)), error
    return True


def begin_again(rank, size, folder):
    for i in range(4):
        part = dist.new_group()
        later(group=part).wait()
        dist.destroy_process_group()
        dist.init_process_group("ddp", init_method=f"file://{folder}/again{i}", rank=rank, world_size=size)
        assert dist.get_backend() == "ddp"
        later().wait()
    return True


def interrupted(rank, size, folder):
    """Ctrl-C in a synchronous operation: it comes when the operation has ended, and the others hear of it."""
    sent = f"{folder}/sent"

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        os.mkdir(sent)

    if rank == 0:
        # A shell lets what it starts in the background ignore the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, interrupt).start()
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        raise AssertionError("no KeyboardInterrupt")
    # Rank 0 stays in the operation until it has got the signal.
    while not os.path.exists(sent):
        time.sleep(0.01)
    try:
        while True:
            dist.all_reduce(torch.ones(1))
    except BackendError as error:
        assert "rank 0 on " in str(error) and "KeyboardInterrupt" in str(error), error
    return True


def callbacks_at_the_end(rank, size):
    """The process ends while each callback waits for an operation that ends later."""
    if rank == 1:
        time.sleep(0.5)
    futures = [later().get_future() for _ in range(50)]
    global kept
    kept = [one.then(lambda _, after=after: after.wait()) for one, after in zip(futures, futures[1:])]
    return True


def groups_in_another_order(rank, size):
    """The groups lie in memory in another order on each rank, and the end of the process closes them."""
    groups = []
    for _ in range(6):
        alone = dist.new_group([1])
        groups.append(dist.new_group())
        if rank == 1:
            dist.destroy_process_group(alone)
        del alone
        groups.append(dist.new_group())
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    return True


def python_goes_on(rank, size, folder):
    """While a rank waits for another one, its other threads run Python: one of them lets the other rank come."""

    def waits(name, call):
        path = f"{folder}/{name}"

        def let_come():
            time.sleep(0.2)
            open(path, "w").close()

        if rank == 0:
            thread = threading.Thread(target=let_come)
            thread.start()
            made = call()
            thread.join()
            return made
        end = time.monotonic() + 30
        while not os.path.exists(path):
            assert time.monotonic() < end, f"{name} keeps other threads from running"
            time.sleep(0.01)
        return call()

    group = waits("new_group", dist.new_group)
    dist.all_reduce(torch.ones(1), group=group)
    waits("destroy", lambda: dist.destroy_process_group(group))
    waits("sparse", lambda: dist.all_reduce(torch.eye(3).to_sparse()))
    if NEW:
        waits("monitored_barrier", backend_of_world().monitored_barrier)
    if RECONFIGURES:
        parts = [waits("split", lambda: dist.split_group(split_ranks=[[0, 1]])), waits("shrink", lambda: backend_of_world().shrink([]))]
        waits("free", parts.clear)
    return True


def thread_at_the_end(rank, size):
    """The process ends while a thread waits in an operation to which nobody comes."""
    group = dist.new_group()
    if rank == 0:
        threading.Thread(target=dist.all_reduce, args=(torch.ones(1),), kwargs={"group": group}, daemon=True).start()
        threading.Thread(target=dist.recv, args=(torch.ones(1), 1), daemon=True).start()
        time.sleep(0.3)
    return True


def sparse_later(rank, size):
    """A sparse sum does not wait in its caller, and may meet other operations in any order."""
    index = torch.tensor([[0, rank + 1]])

    def entries(factor):
        return torch.sparse_coo_tensor(index, torch.ones(2, 3) * factor, (size + 1, 3))

    dist.all_reduce(entries(1))  # the first one makes a communicator
    tensors = [entries(i + 1) for i in range(5)]
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank == 0:
        dist.send(torch.zeros(1), 1)  # rank 1 comes later
    dense = torch.ones(4)
    dist.all_reduce(dense)
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        work.wait()
        sums = tensor.to_dense()
        assert sums[0, 0].item() == size * (i + 1) and sums[size, 2].item() == i + 1, sums
    future = dist.all_reduce(tensors[0], async_op=True).get_future()
    assert future.then(lambda f: f.value()[0].to_dense()[0, 0].item()).wait() == size * size
    return True


def sparse_fails(rank, size):
    dist.all_reduce(torch.eye(3).to_sparse())
    if rank == 1:
        os._exit(0)
    try:
        while True:
            dist.all_reduce(torch.eye(3).to_sparse(), async_op=True).wait()
    except BackendError as error:
        assert "rank 1 on " in str(error), error
    return True


def barriers_leave_no_keys(rank, size):
    """A monitored barrier leaves one key in the store, which the next one deletes."""
    backend, store = backend_of_world(), dist.distributed_c10d._get_default_store()
    backend.monitored_barrier()
    dist.barrier()
    before = store.num_keys()
    for _ in range(10):
        backend.monitored_barrier()
    dist.barrier()
    assert store.num_keys() <= before, (before, store.num_keys())
    return True


def closed_while_destroyed(rank, size):
    """Threads abort and destroy groups while the process closes them all."""
    perturb_freed_memory()
    for _ in range(10):
        groups = [dist.new_group() for _ in range(30)]
        backends = [group._get_backend(torch.device("cpu")) for group in groups]

        def abort(taken):
            for backend in taken:
                backend.abort()

        def destroy():
            while groups:
                dist.destroy_process_group(groups.pop())

        threads = [threading.Thread(target=abort, args=(list(backends),)), threading.Thread(target=destroy)]
        backends.clear()
        for thread in threads:
            thread.start()
        slurm_ddp_torch._C.leave_all("the test")
        for thread in threads:
            thread.join()
    groups = [dist.new_group() for _ in range(30)]
    thread = threading.Thread(target=lambda: [dist.destroy_process_group(groups.pop()) for _ in range(30)])
    thread.start()
    slurm_ddp_torch._C.close_all("")
    thread.join()
    return True


def sparse_closed_by_two(rank, size):
    """A thread destroys groups with sparse sums while the process closes them all."""
    groups = [dist.new_group() for _ in range(100)]
    for group in groups:
        dist.all_reduce(torch.eye(2).to_sparse(), group=group)
    thread = threading.Thread(target=lambda: [dist.destroy_process_group(group) for group in groups])
    thread.start()
    slurm_ddp_torch._C.close_all("")
    thread.join()
    return True


def perturb_freed_memory():
    """A use of freed memory then shows."""
    ctypes.CDLL(None).mallopt(-6, 165)


def backend_of_world():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def take(count):
    return backend_of_world().allocate_tensor(count, dtype=torch.float32, device=torch.device("cpu"))


def memory_is_bounded(rank, size):
    """Sizes that do not come again are freed, and a size that comes again takes the same memory."""

    def shared():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssShmem"))

    before = shared()
    for i in range(40):
        take((1 << 20) + i * 1024).fill_(1)
    assert shared() - before < 100 << 10, (before, shared())
    t = take(1 << 20)
    address = t.data_ptr()
    dist.all_reduce(t)
    del t
    assert take(1 << 20).data_ptr() == address
    return True


def exit_in_a_hook(rank, size):
    """sys.exit() in a communication hook."""
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))

    def hook(state, bucket):
        if rank == 1:
            sys.exit(5)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    ddp.register_comm_hook(None, hook)
    try:
        ddp(torch.ones(1, 10)).sum().backward()
    except RuntimeError as error:
        assert rank == 1 or "rank 1 on " in str(error), error
        if rank == 1:
            raise
        return True
    return False


# The main thread of rank 1 raises while another thread of it waits for rank 0, which waits for the main thread.
THREAD_STAYS = """
import sys, threading, torch, torch.distributed as dist
import slurm_ddp_torch
dist.init_process_group("ddp", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
dist.barrier()
if sys.argv[2] == "1":
    threading.Thread(target=dist.recv, args=(torch.zeros(1), 0)).start()
    raise ValueError("bad batch 42")
dist.all_reduce(torch.ones(1))
"""


class Ends(RanksCase):
    def one_leaves(self, size, body, *arguments, destroy=True):
        """Rank 1 ends without a result."""
        with Ranks(size, body, *arguments, destroy=destroy, limit=120) as ranks:
            codes = ranks.wait()
            for r in range(size):
                if r != 1:
                    self.assertTrue(ranks.result(r), codes)

    def test_callbacks_wait_for_operations(self):
        self.all_end(2, callback_waits)

    def test_callbacks_run_without_a_further_thread(self):
        self.all_end(2, callback_without_a_thread)

    def test_no_future_without_a_thread(self):
        self.all_end(2, no_future_without_a_thread)

    def test_subinterpreters(self):
        self.all_end(2, subinterpreter_is_there)

    def test_callbacks_call_and_raise(self):
        self.all_end(2, callback_calls)

    def test_callbacks_hear_of_the_end(self):
        self.one_leaves(3, callback_hears_of_the_end, destroy=False)

    def test_threads_have_groups(self):
        self.all_end(3, two_threads)

    def test_destroy_while_under_way(self):
        self.all_end(2, destroy_while_under_way)

    def test_destroy_without_the_others(self):
        self.all_end(2, destroy_without_the_others)

    def test_errors_name_torchs_functions(self):
        for apart in (False, True) if HAS_NETWORK else (False,):
            self.all_end(3, errors_name_torchs_functions, apart=apart)
            self.all_end(3, errors_name_the_end, apart=apart)

    def test_begin_again(self):
        self.all_end(2, begin_again, self.folder())

    def test_interrupted(self):
        with Ranks(2, interrupted, self.folder(), limit=120, destroy=False) as ranks:
            self.assertNotEqual(ranks.wait()[0], 0)
            self.assertTrue(ranks.result(1))

    def test_callbacks_at_the_end(self):
        self.all_end(2, callbacks_at_the_end, destroy=False)

    @unittest.skipUnless(HAS_NETWORK, "libddp is built without UCX")
    def test_groups_close_in_one_order(self):
        self.all_end(2, groups_in_another_order, destroy=False, apart=True, timeout=300)

    @unittest.skipUnless(HAS_NETWORK, "libddp is built without UCX")
    def test_python_goes_on(self):
        self.all_end(2, python_goes_on, self.folder(), apart=True)

    def test_thread_at_the_end(self):
        self.all_end(2, thread_at_the_end, destroy=False)

    def test_exception_while_a_thread_waits(self):
        store = f"{self.folder()}/store"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "universal_newlines": True}
        ranks = [subprocess.Popen([sys.executable, "-c", THREAD_STAYS, store, str(r)], **pipes) for r in range(2)]
        try:
            said = [rank.communicate(timeout=120)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.assertEqual([rank.returncode for rank in ranks], [1, 1], said)
        self.assertIn("left: ValueError: bad batch 42", said[0])

    def test_sparse_sum_is_asynchronous(self):
        self.all_end(3, sparse_later)

    def test_sparse_sum_hears_of_a_dead_rank(self):
        self.one_leaves(2, sparse_fails, destroy=False)

    @unittest.skipUnless(NEW, "this torch has no backends inside of groups")
    def test_barriers_leave_no_keys(self):
        self.all_end(2, barriers_leave_no_keys)

    @unittest.skipUnless(ABORTS, "this torch aborts NCCL only")
    def test_groups_are_closed_by_several_threads(self):
        self.all_end(1, closed_while_destroyed, destroy=False)

    def test_sparse_sums_are_closed_by_two_threads(self):
        self.all_end(1, sparse_closed_by_two, destroy=False)

    @unittest.skipUnless(ALLOCATES, "this torch does not ask backends for memory")
    def test_memory_is_bounded(self):
        self.all_end(2, memory_is_bounded)

    @unittest.skipUnless(NEW, "hooks of this torch differ")
    def test_exit_in_a_hook(self):
        self.one_leaves(2, exit_in_a_hook, destroy=False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
