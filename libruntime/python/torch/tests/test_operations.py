# SPDX-License-Identifier: Apache-2.0
"""Random operations beside gloo, and operations that gloo lacks."""

import datetime
import os
import random
import re
import time
import unittest

import torch
import torch.distributed as dist
from ranks import HAS_NETWORK, BackendError, on_ranks

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
NEW = RELEASE >= (2, 0)  # gloo of older releases, and groups, lack functions
# gloo of 2.6 has no reduce_scatter(), and always sums in reduce_scatter_tensor().
NEWEST = RELEASE >= (2, 8)
TYPES = [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8, torch.int8]
TYPES += [torch.bfloat16] if NEW else []
RUNS = int(os.environ.get("DDP_TORCH_OPERATIONS", "200"))
SIZES = [1, 2, 3, 17, 255, 1024, 5000, 70000] + ([0] if NEW else [])  # gloo of 1.13 divides by it


def numbers(draw, shape, kind):
    """Small whole numbers, whose sums are exact in each type."""
    size = 1
    for d in shape:
        size *= d
    values = torch.tensor([draw.randrange(0, 4) for _ in range(min(size, 1000))], dtype=torch.float32)
    return values.repeat((size + 999) // 1000)[:size].reshape(shape).to(kind)


def laid(tensor, draw):
    """The same elements as they lie in memory, in another order, or with gaps between them."""
    order = draw.randrange(4)
    if order == 1:
        return tensor.t().contiguous().t()
    if order == 2:
        return torch.stack([tensor, tensor], -1)[..., 0]
    if order == 3 and tensor.dim() == 2:
        return torch.cat([tensor, tensor], 1)[:, : tensor.shape[1]]
    return tensor


def one(group, rank, size, seed):
    """A random operation of `seed`, the same on all ranks; returns what it has written."""
    same, own = random.Random(seed), random.Random(seed * 1000 + rank)
    order = random.Random(seed + rank)

    def shaped(tensor):  # gloo takes memory as it lies
        return laid(tensor, order) if group is dist.group.WORLD else tensor.contiguous()

    kind = same.choice(TYPES)
    n = same.choice(SIZES)
    shape = same.choice([(n,), (n, 2), (2, n)])
    root = same.randrange(size)
    op = same.choice([dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT])
    later = same.random() < 0.5
    mine = numbers(own, shape, kind)
    empty = [shaped(torch.zeros(shape, dtype=kind)) for _ in range(size)]
    name = same.choice(
        ["all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "all_to_all", "coalesced"]
        + (["all_gather_into"] if NEW else [])
        + (["reduce_scatter", "reduce_scatter_tensor"] if NEWEST else [])
        + (["send"] if size > 1 else [])
    )
    if name in ("all_gather", "all_gather_into", "gather", "send") and own.random() < 0.2:
        mine = mine[:1].expand(shape)  # of which nothing is written
    mine = shaped(mine)
    with_op = {"group": group, "async_op": later}
    if name == "all_reduce":
        work, result = dist.all_reduce(mine, op, **with_op), [mine]
    elif name == "reduce":
        work, result = dist.reduce(mine, root, op, **with_op), [mine] if rank == root else []
    elif name == "broadcast":
        work, result = dist.broadcast(mine, root, **with_op), [mine]
    elif name == "all_gather":
        work, result = dist.all_gather(empty, mine, **with_op), empty
    elif name == "all_gather_into":
        out = shaped(torch.zeros((size * shape[0], *shape[1:]), dtype=kind))
        work, result = dist.all_gather_into_tensor(out, mine, **with_op), [out]
    elif name == "gather":
        work = dist.gather(mine, empty if rank == root else None, root, **with_op)
        result = empty if rank == root else []
    elif name == "scatter":
        given = [shaped(numbers(own, shape, kind)) for _ in range(size)] if rank == root else None
        work, result = dist.scatter(empty[0], given, root, **with_op), [empty[0]]
    elif name == "reduce_scatter":
        given = [shaped(numbers(own, shape, kind)) for _ in range(size)]
        work, result = dist.reduce_scatter(empty[0], given, op, **with_op), [empty[0]]
    elif name == "reduce_scatter_tensor":
        given = shaped(numbers(own, (size * n,), kind))
        out = shaped(torch.zeros(n, dtype=kind))
        work, result = dist.reduce_scatter_tensor(out, given, op, **with_op), [out]
    elif name == "all_to_all":
        rows = [[same.randrange(4) for _ in range(size)] for _ in range(size)]
        out_rows = [rows[r][rank] for r in range(size)]
        out = shaped(torch.zeros((sum(out_rows), 3), dtype=kind))
        given = shaped(numbers(own, (sum(rows[rank]), 3), kind))
        work, result = dist.all_to_all_single(out, given, out_rows, rows[rank], **with_op), [out]
    elif name == "send":
        to, tag = (rank + 1) % size, same.randrange(1 << 20)
        work = dist.isend(mine, to, group, tag)
        dist.recv(empty[0], (rank - 1) % size, group, tag)
        work.wait()
        work, result = None, [empty[0]]
    else:
        many = [mine, shaped(numbers(own, (3,), kind))]
        work, result = dist.all_reduce_coalesced(many, dist.ReduceOp.SUM, **with_op), many
    if work is not None:
        work.wait()
    return name, result


def beside_gloo(rank, size, seeds):
    gloo = dist.new_group(backend="gloo")
    for seed in seeds:
        name, got = one(dist.group.WORLD, rank, size, seed)
        _, wanted = one(gloo, rank, size, seed)
        for a, b in zip(got, wanted):
            # 16-bit products may be rounded in another order.
            close = {"rtol": 0, "atol": 0} if a.dtype not in (torch.float16, torch.bfloat16) else {"rtol": 2e-2, "atol": 1}
            torch.testing.assert_close(a, b, **close, msg=lambda text, s=seed, n=name: f"seed {s}, {n}: {text}")
    return len(seeds)


def more_than_gloo(rank, size):
    """Operations that gloo refuses."""
    total = size * (size + 1) // 2
    mean = torch.full((5,), rank + 1.0)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert torch.equal(mean, torch.full((5,), total / size)), mean

    half = torch.full((5,), rank + 1.0)
    dist.all_reduce(half, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(half, torch.full((5,), total / 2)), half

    bits = torch.tensor([1 << rank, 3], dtype=torch.int64)
    dist.all_reduce(bits, dist.ReduceOp.BXOR)
    assert bits.tolist() == [(1 << size) - 1, 3 if size % 2 else 0], bits

    truth = torch.tensor([rank == 0, False, True])
    dist.all_reduce(truth)
    assert truth.tolist() == [True, False, True], truth

    pair = torch.full((3,), complex(rank, 1))
    dist.all_reduce(pair)
    assert torch.equal(pair, torch.full((3,), complex(total - size, size))), pair

    # Types that cannot be reduced can be moved.
    for kind in (torch.int16, torch.complex64, getattr(torch, "float8_e4m3fn", torch.int16)):
        sent = torch.arange(4).to(kind) if rank == 0 else torch.zeros(4).to(kind)
        dist.broadcast(sent, 0)
        assert sent.tolist() == [0, 1, 2, 3], sent

    # Lists of different sizes.
    blocks = [torch.zeros(r) for r in range(size)]
    dist.all_gather(blocks, torch.full((rank,), float(rank)))
    assert all(torch.equal(b, torch.full((r,), float(r))) for r, b in enumerate(blocks)), blocks
    mine = torch.zeros(rank)
    dist.reduce_scatter(mine, [torch.ones(r) for r in range(size)])
    assert torch.equal(mine, torch.full((rank,), float(size))), mine
    out = [torch.zeros(r + 1) for r in range(size)]
    dist.all_to_all(out, [torch.full((rank + 1,), float(rank)) for _ in range(size)])
    assert all(torch.equal(b, torch.full((r + 1,), float(r))) for r, b in enumerate(out)), out

    # Tags of 31 bits, and any source.
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            got = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(got, tag=2**31 - 1)
            assert got.item() == source * 7, (got, source)
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.tensor([rank * 7]), 0, tag=2**31 - 1)
    return True


def refuses_before_it_sends(rank, size):
    """No rank begins with an operation whose output has elements that share memory."""
    shared, whole = torch.ones(2, 1).expand(2, 3), torch.ones(2, 3)
    lists = [whole.clone() for _ in range(size)]
    later = {"async_op": True}
    calls = [
        lambda: dist.all_reduce(shared, **later),
        lambda: dist.all_reduce(torch.ones(1, 2, dtype=torch.complex64).expand(3, 2), **later),
        lambda: dist.all_reduce_coalesced([whole, shared], **later),
        lambda: dist.all_gather([shared] * size, whole, **later),
        lambda: dist.reduce_scatter(shared, lists, **later),
        lambda: dist.all_to_all([shared] * size, lists, **later),
        lambda: dist.scatter(shared, lists if rank == 0 else None, 0, **later),
        lambda: dist.irecv(shared, (rank + 1) % size),
    ]
    if rank == 0:
        calls += [lambda: dist.reduce(shared, 0, **later), lambda: dist.gather(whole, [shared] * size, 0, **later)]
    else:
        calls += [lambda: dist.broadcast(shared, 0, **later)]
    if NEWEST:
        calls += [
            lambda: dist.broadcast(torch.ones(3, dtype=torch.complex64).conj(), 0, **later),
            lambda: dist.all_gather_into_tensor(torch.ones(2 * size, 1).expand(2 * size, 3), whole, **later),
            lambda: dist.reduce_scatter_tensor(torch.ones(1).expand(2), torch.ones(2 * size), **later),
            lambda: dist.all_to_all_single(torch.ones(size, 1).expand(size, 2), torch.ones(size, 2), **later),
        ]
    for number, call in enumerate(calls):
        try:
            call()
        except (RuntimeError, ValueError) as error:
            assert re.search("a single memory location|resolve_conj|contiguous", str(error)), error
        else:
            raise AssertionError(f"call {number} of {len(calls)}")
    # What nobody writes may share memory.
    sent = torch.full((2, 1), 7.0).expand(2, 3) if rank == 0 else torch.zeros(3, 2).t()
    dist.broadcast(sent, 0)
    assert sent.tolist() == [[7.0] * 3] * 2, sent
    return True


def shorter_messages(rank, size):
    """As with gloo, a message may be shorter than the tensor that receives it, whose other elements stay as they are."""
    for number, sent in enumerate((4, 0, 300000)):
        room = sent + 4
        for source in (0, None):
            for early in (False, True):
                for place in (torch.full((room,), -1.0), torch.full((room, 2), -1.0)[:, 0]):
                    if early == (rank == 0):
                        time.sleep(0.02)
                    if rank == 0:
                        dist.send(torch.arange(sent).float(), 1, tag=number)
                    else:
                        assert dist.recv(place, source, tag=number) == 0
                        assert torch.equal(place[:sent], torch.arange(sent).float()), place
                        assert place[sent:].tolist() == [-1.0] * 4, place
    # gloo ends the process that gets a longer one.
    try:
        if rank == 0:
            dist.send(torch.ones(8), 1)
            dist.barrier()
        else:
            dist.recv(torch.ones(4), 0)
    except BackendError as error:
        assert "rank 1 on " in str(error) and "rank 0 on " in str(error) and "sent u8[32]" in str(error), error
        return True
    return False


def works_and_futures(rank, size):
    ones = [torch.ones(n) for n in (1, 1000, 300000)]
    works = [dist.all_reduce(t, async_op=True) for t in ones]
    last = works[-1].get_future()
    del works[1]  # nobody waits for it
    seen = last.then(lambda f: f.value()[0].sum().item()).wait()
    assert seen == 300000.0 * size, seen
    assert all(t[0].item() == size for t in ones)
    works[0].wait()
    assert works[0].is_completed() and works[0].is_success()
    assert torch.equal(works[0].result()[0], ones[0])
    # A tensor of which only the operation knows.
    for _ in range(100):
        dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(lambda f: None)
    # A timeout may be longer than the clock can count.
    if rank == size - 1:
        time.sleep(0.2)
    dist.all_reduce(torch.ones(1), async_op=True).wait(datetime.timedelta(days=200000))
    # Another thread completes the operation, and does not have this thread's mode.
    with torch.inference_mode():
        view = torch.ones(4, 6)[:, ::2]
        if rank == size - 1:
            time.sleep(0.2)
        dist.all_reduce(view, async_op=True).get_future().wait()
        assert torch.equal(view, torch.full((4, 3), float(size))), view
    view = torch.zeros(4, 6)[:, ::2]
    dist.broadcast(view.copy_(torch.full((4, 3), float(rank + 1))), size - 1)
    assert torch.equal(view, torch.full((4, 3), float(size)))
    dist.barrier()
    return True


def groups(rank, size):
    def local(members):
        if NEW:
            return dist.new_group(members, use_local_synchronization=True)
        return dist.new_group(members)

    pairs = [[r, (r + 1) % size] for r in range(size)]
    for members in pairs:
        group = dist.new_group(sorted(members))
        if rank in members:
            t = torch.full((3,), float(rank))
            dist.all_reduce(t, group=group)
            assert t[0].item() == sum(members), t
    if size >= 4 and NEW:
        # Only the members call, at the same time as others.
        mine = [r for r in range(size) if r % 2 == rank % 2]
        group = local(mine)
        t = torch.full((3,), float(rank))
        dist.all_reduce(t, group=group)
        assert t[0].item() == sum(mine), t
        dist.destroy_process_group(group)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    if NEWEST:
        try:
            dist.monitored_barrier()
        except ValueError as error:  # in 2.10 and before, Python allows it for gloo only, and the group does not
            assert "GLOO" in str(error), error
            dist.distributed_c10d._get_default_group().monitored_barrier(datetime.timedelta(seconds=60), wait_all_ranks=False)
    return True


class Operations(unittest.TestCase):
    def test_random_operations_equal_gloos(self):
        for size in (2, 3, 4):
            self.assertEqual(on_ranks(size, beside_gloo, range(size * 1000, size * 1000 + RUNS)), [RUNS] * size)

    def test_what_gloo_lacks(self):
        for size in (2, 3):
            self.assertTrue(all(on_ranks(size, more_than_gloo)))

    def test_refusals_come_before_an_operation(self):
        for size in (1, 2, 3):
            self.assertTrue(all(on_ranks(size, refuses_before_it_sends, timeout=20)))

    def test_messages_may_be_shorter(self):
        self.assertTrue(all(on_ranks(2, shorter_messages, destroy=False)))

    @unittest.skipUnless(HAS_NETWORK, "libddp is built without UCX")
    def test_messages_between_nodes_may_be_shorter(self):
        self.assertTrue(all(on_ranks(2, shorter_messages, destroy=False, apart=True)))

    def test_a_world_of_one(self):
        self.assertEqual(on_ranks(1, beside_gloo, range(RUNS // 3)), [RUNS // 3])

    def test_works_and_futures(self):
        for size in (1, 3):
            self.assertTrue(all(on_ranks(size, works_and_futures)))

    def test_groups(self):
        for size in (2, 4):
            self.assertTrue(all(on_ranks(size, groups)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
