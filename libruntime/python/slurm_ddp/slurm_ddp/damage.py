# SPDX-License-Identifier: Apache-2.0
"""compare(): ranks that should have the same parameters have them, or the rank whose memory or processor is damaged is named.

Each rank sends 8 bytes: a sum of the bits of its tensors, in which each word counts by an odd number of its own, modulo
2^64. So one or two flipped bits always change it.
"""
import weakref

from . import jobs

_COLUMNS = 1024          # of 64-bit words: blocks are summed as matrices
_BLOCK = 8 * _COLUMNS    # bytes; a block's rest is zeros
_TOGETHER = 16 << 20     # so many bytes of small tensors are one block
_WITHOUT = "go on without node "  # the plugin avoids this node in a restart: libruntime/watch/progress.h

_states = weakref.WeakKeyDictionary()  # by model


class DamageError(RuntimeError):
    """Some ranks have other parameters than most. `ranks`: which, as far as most ranks agree; `node`: the one that they are
    all on, or None."""

    def __init__(self, text, ranks=(), node=None):
        super().__init__(text)
        self.ranks, self.node = list(ranks), node
        self.of_others = False  # most ranks agree, and this one does with them


DamageError.__module__ = __package__  # as programs name it


class _State:
    def __init__(self):
        self.calls, self.compared = 0, None  # the number of the call that compared last, when all ranks had the same


def compare(model, optimizer=None, every=1, step=None, group=None):
    """Compares the model's parameters, and the optimizer's state unless it is sharded, on all ranks after each `every` calls.

    All ranks of `group` call it alike, once after each step; with every=1 it compares at once, as before a checkpoint is
    saved. `step` is the number for the message. DamageError, on all ranks: a rank has other parameters than most others.
    """
    if every < 1:
        raise ValueError("every is %r; it must be 1 or more" % (every,))
    import torch.distributed as dist
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) < 2:
        return
    state = _states.setdefault(model, _State())
    state.calls += every > 1
    # The first call shows that ranks have begun alike.
    if state.compared is not None and every > 1 and state.calls % every != 0:
        return
    tensors = _tensors(model, optimizer)
    sums = _gather(_checksum(tensors), tensors[0].device, group, dist)
    if len(set(sums)) == 1:
        state.compared = state.calls
        return
    raise _error(sums, dist.get_rank(group), state, " after step %d" % step if step is not None else "", group, dist)


def _tensors(model, optimizer):
    """What each rank has the same: no buffers, and no shards."""
    kept = [parameter for parameter in model.parameters() if _is_whole(parameter)]
    if not kept:
        raise ValueError("each rank keeps a shard of the parameters: there are none to compare")
    # Of ZeroRedundancyOptimizer and its like, each rank has the state of its own parameters.
    for parameter in kept if optimizer is not None and not hasattr(optimizer, "consolidate_state_dict") else ():
        values = optimizer.state.get(parameter, {})
        kept += [values[name] for name in sorted(values, key=str) if _is_whole(values[name])]
    return [tensor.detach() for tensor in kept]


def _is_whole(value):
    import torch
    return (isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel() > 0 and
            not hasattr(value, "placements") and not getattr(value, "_is_flat_param", False) and
            type(value).__name__ != "FlatParameter")


# ---- the checksum ------------------------------------------------------------------------------


def _blocks(tensors):
    """Bytes in whole blocks, on one device each: large tensors by themselves, small ones together."""
    import torch
    small, bytes_of_small = [], 0
    for tensor in tensors:
        flat = tensor.contiguous().reshape(-1)
        if (flat.storage_offset() * flat.element_size()) % 8 != 0:
            flat = flat.clone()
        flat = flat.view(torch.uint8)
        whole = flat.numel() // _BLOCK * _BLOCK if flat.numel() >= _TOGETHER // 16 else 0
        if whole:
            yield flat[:whole]
        if small and (small[0].device != flat.device or bytes_of_small > _TOGETHER):
            yield _join(small, bytes_of_small)
            small, bytes_of_small = [], 0
        small.append(flat[whole:])
        bytes_of_small += flat.numel() - whole
    yield _join(small, bytes_of_small)


def _join(parts, count):
    import torch
    rest = -count % _BLOCK
    return torch.cat(parts + [torch.zeros(rest, dtype=torch.uint8, device=parts[0].device)])


def _block_sum(block, columns):
    """The word in row r and column c counts 2048 r + 2 c + 1 times. The upper halves are summed once more by themselves:
    in 64 bits, two of the highest bits could cancel each other out."""
    import torch
    rows_at_once = 256 if block.device.type == "cpu" else 1 << 16
    total = torch.zeros((), dtype=torch.int64, device=block.device)
    matrix = block.view(torch.int64).view(-1, _COLUMNS)
    for first in range(0, len(matrix), rows_at_once):
        part = matrix[first:first + rows_at_once]
        rows = torch.arange(first, first + len(part), device=block.device) * (2 * _COLUMNS)
        for number, words in enumerate((part, part >> 32)):
            total += ((words.sum(0) * columns).sum() + (words.sum(1) * rows).sum()) * (1 + number * 0x632be59b)
    return total


def _checksum(tensors):
    import torch
    value, columns = 0, {}
    for block in _blocks(tensors):
        if block.device not in columns:
            columns[block.device] = 2 * torch.arange(_COLUMNS, device=block.device) + 1
        value = (value * 0x2545f4914f6cdd1d + int(_block_sum(block, columns[block.device]))) % (1 << 64)
    return value - (1 << 63)


def _gather(own, device, group, dist):
    import torch
    backend = str(dist.get_backend(group)).lower()
    where = device if device.type != "cpu" and "gloo" not in backend and backend != "ddp" else torch.device("cpu")
    sent = torch.tensor([own], dtype=torch.int64, device=where)
    heard = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(heard, sent, group=group)
    return [int(value) for value in heard]


# ---- who is odd --------------------------------------------------------------------------------


def _error(sums, own, state, after, group, dist):
    """The exception, on all ranks alike. Only here ranks tell each other their nodes."""
    mine = (jobs.job().node_name, dist.get_rank())
    heard = [None] * len(sums)
    dist.all_gather_object(heard, mine, group=group)
    usual = max(sums, key=sums.count)
    count = sums.count(usual)
    odd = [rank for rank, value in enumerate(sums) if value != usual]
    names = ["rank %d on %s" % (rank, node) for node, rank in heard]
    majority = 2 * count > len(sums)
    suspects = odd if majority else range(len(sums))
    node = heard[suspects[0]][0] if len({heard[rank][0] for rank in suspects}) == 1 else None
    if state.compared is None:
        return RuntimeError("%s has other parameters than %s at the first comparison: give all ranks the same, as "
                            "DistributedDataParallel does" % (names[odd[0]], names[sums.index(usual)]))
    if majority:
        more = len(odd) - 1
        who = "%s has" % names[odd[0]] if more == 0 else "%s and %d more rank%s%s have" % (
            names[odd[0]], more, "s" if more > 1 else "", " there" if node is not None else "")
        text = "%s other parameters than %d of %d ranks%s: %s memory or processor is damaged" % (
            who, count, len(sums), after, "its" if more == 0 else "their")
    else:
        first, second = sorted((sums.index(usual), odd[0]))
        text = "one of %s and %s has wrong parameters%s, and too few of %d ranks agree to tell which: its memory or " \
               "processor is damaged" % (names[first], names[second], after, len(sums))
    advice = "%s%s from the last checkpoint" % (_WITHOUT, node) if node is not None else "go back to the last checkpoint"
    error = DamageError("%s; %s" % (text, advice), [heard[rank][1] for rank in odd] if majority else [], node)
    error.of_others = majority and own not in odd
    return error
