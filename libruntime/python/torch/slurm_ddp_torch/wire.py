# SPDX-License-Identifier: Apache-2.0
"""Hooks of DistributedDataParallel that send gradients in fewer bytes by a group of this backend.

The model's own process group may be of any backend.
"""

import threading

import torch
import torch.distributed as dist

__all__ = ["bf16_wire", "powersgd_wire"]


def bf16_wire(group):
    """Arguments of DistributedDataParallel.register_comm_hook() that reduce gradients as bf16 by `group`.

    `group` is one of this backend, which sums 16-bit numbers in f32 and rounds once:

        model.register_comm_hook(*slurm_ddp_torch.bf16_wire(dist.new_group(backend="ddp")))
    """

    def hook(state, bucket):
        buffer = bucket.buffer()
        wire = buffer.to(torch.bfloat16)
        future = dist.all_reduce(wire, dist.ReduceOp.AVG, group=state, async_op=True).get_future()
        return future.then(lambda done: buffer.copy_(done.value()[0]))

    return group, hook


def powersgd_wire(group, rank=1, start=0, min_rate=2, feedback=True, warm_start=True, seed=0):
    """Arguments of DistributedDataParallel.register_comm_hook() that send matrices as two factors of low rank by `group`.

    This is PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019), as libddp's own models have it. `group` is a group
    of this backend that nothing else uses. The gradient of a parameter of the shape [rows, columns...] travels as
    (rows + columns) * rank numbers if these are fewer than its elements by the factor `min_rate`. The first `start`
    steps send whole gradients; give the steps of the warm-up. With `feedback` each rank adds what the factors have
    left out to its gradients of the next step. With `warm_start` a step begins with the factors of the last one.

        model.register_comm_hook(*slurm_ddp_torch.powersgd_wire(dist.new_group(backend="ddp"), rank=2, start=100))

    The first of the two arguments has `full_bytes` and `sent_bytes`: what the last step's gradients take, and what
    travelled for them.
    """
    return _PowerSGD(group, rank, start, min_rate, feedback, warm_start, seed), _reduce


def _reduce(state, bucket):
    return state.reduce(bucket)


def _orthonormal(columns):
    return torch.linalg.qr(columns)[0]


class _Matrix:
    """A parameter that travels as factors: gradient = left @ right.T."""

    def __init__(self, shape, rank, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.rank = min(rank, *shape)
        self.left_out = None
        self.renew()

    def renew(self):
        self.right = torch.randn(self.shape[1], self.rank, generator=self.generator)


class _Bucket:
    def __init__(self, buffer):
        self.buffer = buffer
        self.result = torch.futures.Future()
        self.plain = []  # gradients that travel as they are
        self.factored = []  # [matrix, gradient of the parameter, gradient with what was left out, left factor]


class _PowerSGD:
    def __init__(self, group, rank, start, min_rate, feedback, warm_start, seed):
        if rank < 1 or start < 0 or min_rate <= 0:
            raise ValueError(f"powersgd_wire: rank {rank}, start {start}, min_rate {min_rate}: they must be positive")
        self.group, self.rank, self.start, self.min_rate = group, rank, start, min_rate
        self.feedback, self.warm_start, self.seed = feedback, warm_start, seed
        self.step = 0
        self.matrices = {}  # by parameter
        self.full_bytes = self.sent_bytes = 0
        self._lock = threading.Lock()
        self._begin()

    def _begin(self):
        self._buckets, self._arrived, self._complete = [], 0, False

    def _matrix_of(self, parameter):
        if parameter.dim() < 2 or parameter.numel() == 0:
            return None
        shape = (parameter.shape[0], parameter.numel() // parameter.shape[0])
        if sum(shape) * min(self.rank, *shape) * self.min_rate >= shape[0] * shape[1]:
            return None
        if parameter not in self.matrices:
            # All ranks see the parameters in the same order.
            self.matrices[parameter] = _Matrix(shape, self.rank, (self.seed << 32) + len(self.matrices))
        return self.matrices[parameter]

    def _send(self, tensors, then):
        wire = torch.cat([t.reshape(-1) for t in tensors]) if tensors else torch.zeros(0)
        self.sent_bytes += wire.nbytes
        work = dist.all_reduce(wire, dist.ReduceOp.AVG, group=self.group, async_op=True)

        def arrived(future):
            try:
                sums = future.value()[0]
                then([s.reshape(t.shape) for s, t in zip(sums.split([t.numel() for t in tensors]), tensors)])
            except Exception as error:  # an error of one bucket ends the step
                self._fail(error)

        work.get_future().then(arrived)

    def _fail(self, error):
        with self._lock:
            buckets = list(self._buckets)
        for bucket in buckets:
            if not bucket.result.done():
                bucket.result.set_exception(error)

    def reduce(self, given):
        bucket = _Bucket(given.buffer())
        with self._lock:
            if self._complete:
                self._begin()
            if not self._buckets:
                self.full_bytes = self.sent_bytes = 0
            self.full_bytes += bucket.buffer.nbytes
            self._buckets.append(bucket)
            number = len(self._buckets)
        for parameter, gradient in zip(given.parameters(), given.gradients()):
            matrix = self._matrix_of(parameter) if self.step >= self.start else None
            if matrix is None:
                bucket.plain.append(gradient)
                continue
            whole = gradient.reshape(matrix.shape).float()
            if matrix.left_out is not None:
                whole = whole + matrix.left_out
            bucket.factored.append([matrix, gradient, whole, None])
        if given.is_last():
            self.step += 1
        lefts = [whole @ _orthonormal(matrix.right) for matrix, _, whole, _ in bucket.factored]
        self._send(bucket.plain + lefts, lambda sums: self._have_left(bucket, sums))
        if given.is_last():
            with self._lock:
                self._complete = True
                last = self._arrived == number
            if last:
                self._send_right()
        return bucket.result

    def _have_left(self, bucket, sums):
        for gradient, total in zip(bucket.plain, sums):
            gradient.copy_(total)
        for item, total in zip(bucket.factored, sums[len(bucket.plain) :]):
            item[3] = _orthonormal(total.float())
        with self._lock:
            self._arrived += 1
            last = self._complete and self._arrived == len(self._buckets)
        if last:
            self._send_right()

    def _send_right(self):
        """All left factors are there on this rank, and all ranks have issued theirs."""
        items = [item for bucket in self._buckets for item in bucket.factored]
        buckets = self._buckets
        if not items:
            return self._end(buckets)
        self._send([whole.t() @ left for _, _, whole, left in items], lambda sums: self._have_right(buckets, items, sums))

    def _have_right(self, buckets, items, sums):
        for (matrix, gradient, whole, left), right in zip(items, sums):
            product = left @ right.t()
            if self.feedback:
                matrix.left_out = whole - product
            if self.warm_start:
                matrix.right = right
            else:
                matrix.renew()
            gradient.copy_(product.reshape(gradient.shape))
        self._end(buckets)

    def _end(self, buckets):
        for bucket in buckets:
            bucket.result.set_result(bucket.buffer)
