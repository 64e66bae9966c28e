# SPDX-License-Identifier: Apache-2.0
"""What the document of the comparison tells in words: what a part measures, who is compared and with which options, and
why somebody else is ahead where that is known. It has a text only for what a run has figures of."""

import re

OURS = "ours"

# The column's head, and who that is.
CONTENDERS = {
    "gloo": ("gloo", "`torch.distributed` with the backend gloo, called from Python, one thread a rank"),
    "openmpi": ("Open MPI", "Debian's Open MPI, called from C. Its point-to-point layer is `ob1`, over shared memory (`vader`) on a "
                            "node and over TCP between nodes. Ranks are not bound to cores (`--bind-to none`), as all others. On a "
                            "node a cell has the best of: its own choice (one copy by the kernel, CMA), copies through shared memory "
                            "(`btl_vader_single_copy_mechanism none`), these with an eager limit of 64 KiB, ranks that yield, and "
                            "memory of `MPI_Alloc_mem()`; between nodes of: its own choice, and an eager limit of 256 KiB "
                            "(`btl_tcp_eager_limit`) with sockets of 4 MiB or of the kernel's choice (`btl_tcp_sndbuf`, `_rcvbuf`)"),
    "openmpi5": ("Open MPI 5", "Open MPI 5.0 of Python's package index (`tests/bench/peers`) in the same way, with CMA and without"),
    "intelmpi": ("Intel MPI", "Intel MPI of the same index, over shared memory on a node and libfabric's TCP between nodes. On a node a "
                              "cell has the best of: its own choice, ranks that yield (`I_MPI_THREAD_YIELD=2`), a heap that ranks "
                              "share (`I_MPI_SHM_HEAP`), and memory of `MPI_Alloc_mem()`"),
    "mpich": ("MPICH", "MPICH of the same index, otherwise the distribution's, called from C, with its own choice of transports; "
                       "`mpiexec.hydra` starts the ranks on a node, `srun --mpi=pmi2` on several nodes. Its ranks never give up a "
                       "core, so an operation of more ranks than cores may take seconds, and is left out then. If MPICH 4.0 hangs in `MPI_Finalize` after all ranks have their sums, its start counts"),
    "pytorch": ("PyTorch", "the same model in PyTorch, eager, with fused AdamW; on several ranks `DistributedDataParallel` over gloo "
                           "with `gradient_as_bucket_view`. glibc keeps freed memory (`MALLOC_TRIM_THRESHOLD_`), without which "
                           "page faults cost PyTorch a fifth of its step. bf16 is autocast"),
    "torch.compile": ("torch.compile", "the same by `torch.compile`"),
    "PyTorch contiguous": ("PyTorch, contiguous", "the same network in PyTorch, eager, with images in PyTorch's usual order"),
    "PyTorch channels last": ("PyTorch, channels last", "the same with `channels_last`, which oneDNN prefers"),
    "PyTorch compiled": ("PyTorch, compiled", "the same with `channels_last`, by `torch.compile`"),
    "srun python": ("srun, by hand", "the same script under plain srun, where the user sets `MASTER_ADDR` and `MASTER_PORT`"),
    "torchrun": ("torchrun", "the same script under `python -m torch.distributed.run --rdzv_backend c10d`, which srun starts "
                             "once on each node"),
    "torchrun pytorch": ("torchrun", "the same script under `torchrun --nnodes 2:2 --max_restarts 9 --rdzv_backend c10d "
                                     "--monitor_interval 0.1 --rdzv_conf keep_alive_interval=1,keep_alive_max_attempt=5`, so that a "
                                     "silent agent counts as lost after 5 s, as with `silence=5` (otherwise after 15 s). "
                                     "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is set. Without it, ranks that are started again find "
                                     "in the agents' store the addresses of ranks that have ended, and never connect (PyTorch's "
                                     "issue 135712). For a power loss a third agent waits. For a kill there is none, because "
                                     "all agents would restart their ranks again and again for the one that is in excess"),
    "torch.save": ("torch.save", "model and optimizer in PyTorch, by `torch.save()`, which leaves the file in the kernel's page cache"),
    "torch.save, synced": ("torch.save, synced", "the same, and then the file is synced to the disk and renamed, and its folder "
                                                 "synced, as ours is"),
    "torch.load": ("torch.load", "`torch.load(weights_only=True)`, and `load_state_dict()` of model and optimizer"),
    "torch.load, mapped": ("torch.load, mapped", "the same with `mmap=True`; the optimizer's state is copied to its own tensors"),
    "DCP": ("DCP", "the same by `torch.distributed.checkpoint.save()` and `load()`, of one rank"),
    "async_save": ("async_save", "the same by `torch.distributed.checkpoint.async_save()`, which copies what it saves, and writes "
                                 "and syncs it in a thread"),
    "DataLoader": ("DataLoader", "PyTorch's `DataLoader` with 0, 1 or 2 workers, whichever is the quickest"),
}

# What is no product, but tells what the machine can do.
BOUNDS = {
    "plain": ("a plain loop", "a loop over shared memory that was written for this benchmark, and does nothing else: each "
                              "rank sums its part of all buffers"),
    "memcpy": ("memcpy", "each rank copies its buffer, all at once"),
    "wire": ("TCP stream", "one TCP connection between two nodes, the buffer each way"),
    "srun true": ("srun true", "until srun has ended, while the others count until the last rank has its first sum"),
    "srun without --ddp": ("srun without --ddp", "the same step without the plugin's work"),
    "no communication": ("no communication", "the same ranks at the same time, each by itself"),
    "one rank": ("one rank", "one rank alone, without anything to communicate"),
    "library products": ("products of a library", "as many floating point operations as a step has, at the best rate of the round "
                         "of another library's matrix products of f32: PyTorch's `torch.mm()` or NumPy's (OpenBLAS), of 2048 x "
                         "2048 or of the step's own shapes. Softmax, activations and the optimizer come on top. The goal is in "
                         "this unit: a step at 95% of the rate of a library's sgemm"),
    "products": ("our own products", "as many floating point operations at the rate of libddp's own matrix product of 2048 x 2048 "
                                     "(`rank_sgemm`)"),
    "no checkpoint": ("no checkpoint", "the same steps without checkpoints"),
    "floor": ("floor", "a backend that does nothing: the time that torch and Python take themselves"),
    "longer": ("the longer one", "the longer one of computing alone and communicating alone"),
}

PARTS = {
    "launch": "The time from the start of srun until the last rank has the sum of its first all-reduce, on 2 nodes of 2 "
              "ranks. Programs in C are compared with programs in C, and a PyTorch script with the same script, whose time "
              "is mostly that of `import torch`. The line of a program that ends at once tells what the plugin costs a step.",
    "wire-up": "Ranks of one node find each other: the time from the moment when the last rank's program runs until all "
               "ranks have the sum of their first all-reduce. Launching and loading are not in it.",
    "memory": "Memory that one rank takes, on average. Of wire-up it is what a rank's share of memory (PSS) grows by until "
              "its first sum. Of a training it is the largest resident memory of a rank, in which pages that ranks share count "
              "for each of them, and so do the libraries.",
    "all_reduce": "One all_reduce of f32 values, a sum, in place. A range is that from the first to the third quartile here, "
                  "and a time is that of the slowest rank. Ours reduces memory of `ddp_mem_alloc()`, which the ranks of a node share, "
                  "or, with `own memory`, what `posix_memalign()` gave the program, as all the others do; where an MPI is quicker "
                  "with memory of `MPI_Alloc_mem()` or a heap that its ranks share, that counts in the lines without `own memory`. `rewritten`: each rank writes its "
                  "whole buffer before each operation, as a training does, and that is in the time of all; otherwise an operation "
                  "finds what the one before has left in the caches. gloo is called from Python, and each MPI from C. A limited link "
                  "is a token bucket of this machine's kernel, which lets 4 ms of bytes pass at once: what is short may be faster "
                  "than the link's rate.",
    "PyTorch's backend `ddp`": "Both sides are `torch.distributed.all_reduce()` and `DistributedDataParallel` in the same "
                               "Python process; ours is the backend `ddp` (`slurm-ddp-torch`) in gloo's place. `shared` is "
                               "memory in which the buckets of DDP lie.",
    "training step": "One step of the same GPT (forward, backward, clipping, AdamW) and of the same network for images "
                     "(forward, backward, SGD with momentum) by the examples of slurm-ddp and by PyTorch, on one rank.",
    "data parallelism": "What several ranks cost beside one rank. The ranks share the machine's cores and its memory's "
                        "bandwidth, so that also ranks that do not communicate take longer than one.",
    "overlap": "The step of a training whose gradients travel over a limited link, over the longer one of computing alone "
               "and communicating alone. 1 would be perfect.",
    "checkpoints": "Both sides write or read the parameters and AdamW's state of the same model, 12 bytes for each parameter. Ours "
                   "is on the disk under its name before an older one is removed, and so is `torch.save, synced`. The file of "
                   "`torch.save()` is in the page cache only, which a loss of power empties. Saved at once, and loaded: the time of "
                   "the call; the file is in the page cache when it is read, and ours is checked by its CRC. Beside the steps, a thread "
                   "writes it, and the seconds are what the steps of a run take longer than as many steps right before a checkpoint "
                   "(the median), for each checkpoint; less than 10 ms count as 10 ms, because steps differ by that themselves.",
    "loader": "The time until the next batch is there, from a file in the page cache, while nobody computes. Both sides shuffle, and "
              "give tokens as int32, or images as f32, cut out of a border of 4, mirrored at random and normalised. Ours has 1 or 2 "
              "readers, and `DataLoader` 0 to 2 workers: the best of each counts.",
    "recovery": "The time from a failure to the end of the next step of the same PyTorch script, less the time that the "
                "script takes to start (mostly `import torch`). The node's failure is noticed after `silence=5` seconds by "
                "`srun --ddp`.",
}

# Why somebody else is ahead: part, what (both are searched for), who (None: anybody, or a missed goal), and the reason. A
# document that was measured before has parts of its own.
REASONS = (
    ("all_reduce", "^1 KiB, .*nodes", None, "all take what the kernel takes to carry a packet to the other rank and back. Ranks of "
     "the others never give up their core; ours do, and have to part again when two of them meet on a core."),
    ("all_reduce", "^(64 KiB|1 MiB), .*unlimited", None, "UCX 1.13 reads messages into a buffer of its own, where ours sums them, "
     "and puts one of more than 64 KiB together from parts: 1 MiB in messages of 256 KiB took 3.6 times as long as in messages of "
     "60 KiB, which ours sends. Two bare sockets, whose pieces are of 57 KiB and go straight to their place, took 0.8 to 0.9 of "
     "the time of ours for 1 MiB, and in pieces of 128 KiB up to twice as long."),
    ("all_reduce", r"^(64 KiB|256 KiB|\d+ MiB), .*nodes", None, "the link is the limit, so that all who use it well are level."),
    ("all_reduce", "own memory", None, "each rank copies its input to shared memory, and the results from there, at the rate of the "
     "machine's memcpy. With memory of the library there is no copy."),
    ("training step", "resnet|cnn|cifar", None, "convolutions are most of the step, and PyTorch's oneDNN computes them well. "
     "Ours gains where operations in between are merged."),
    ("training step", "GPT", "library products", "the unit is the rate of a square product that repeats, so that its operands are in "
     "the cache. With a step's shapes, in a step's order, MKL's products reached 92% of that rate on 1 thread of a Xeon and 82% on "
     "2, attention's 68% and 60%; on 1 thread ours took 0.99 of MKL's time. AdamW moves 32 bytes for each parameter, which takes "
     "3% of the step at the rate of the memory. Activations, softmax and normalisation come on top, too."),
    ("training step", "GPT", "products", "attention, softmax, normalisation and the optimizer come on top, and are a larger share "
     "of the step since the products that the goal counts are faster."),
    ("overlap", "", None, "moving and summing gradients takes time of the core that computes; a machine whose cores are all "
     "computing cannot hide that. With a core or a GPU that only computes, the step is within the goal "
     "(`overlap --wait`, tests/bench/README.md)."),
    ("data parallelism", "", "no communication", "the ranks share cores, caches and the memory's bandwidth, which the sum of "
     "the gradients needs, too."),
    ("data parallelism", "over one rank", "pytorch", "both hide nearly all of what communication takes, so that both are 1 within what "
     "steps differ by themselves. A step of ours is shorter, so that the same sums are a larger share of it."),
    ("checkpoints", "at once", "torch.save", "it returns before the disk has the file, and ours waits for the disk."),
    ("checkpoints", "loaded", None, "ours checks each tensor's CRC before it changes the model, and the mapped file is not checked."),
    ("checkpoints", "beside", None, "ours copies what it saves within a step, and a thread brings the copy to the disk while the "
     "next steps need the memory's bandwidth, too."),
    ("PyTorch's backend", "1 KiB|64 KiB", None, "at small sizes most of the time is torch's and Python's (the floor), which a "
     "backend cannot change."),
)


def label(name):
    return (CONTENDERS.get(name) or BOUNDS.get(name) or (name,))[0]


def reason(figure, name):
    """Why `name` is ahead, or a goal is missed; None: nobody knows yet."""
    return next((text for part, what, who, text in REASONS if re.search(part, figure.part) and re.search(what, figure.what)
                 and who in (None, name)), None)


def is_behind(ratio):
    """Less than 1 also when it is written down."""
    return round(ratio, 2) < 1


def times(ratio):
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"
