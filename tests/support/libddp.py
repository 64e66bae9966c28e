# SPDX-License-Identifier: Apache-2.0
"""libddp for tests in Python: types of ddp.h, and the library, where Python can load it."""
import ctypes
import os
import sys


class Spawned(ctypes.Structure):
    _fields_ = [("is_rank", ctypes.c_bool), ("exit_code", ctypes.c_int), ("failed_rank", ctypes.c_int),
                ("reserved", ctypes.c_uint64 * 4)]


class Param(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("ndim", ctypes.c_int), ("shape", ctypes.c_int64 * 8),
                ("no_decay", ctypes.c_bool), ("sparse_rows", ctypes.c_int64), ("rows_only", ctypes.c_bool),
                ("kind", ctypes.c_int), ("group", ctypes.c_void_p), ("reserved", ctypes.c_uint64 * 4)]


class Options(ctypes.Structure):
    """ddp_model_options, as far as a test needs them."""
    _fields_ = [("size", ctypes.c_size_t), ("bucket_mb", ctypes.c_double), ("first_bucket_mb", ctypes.c_double),
                ("optimizer", ctypes.c_int), ("learning_rate", ctypes.c_double), ("beta1", ctypes.c_double),
                ("beta2", ctypes.c_double), ("epsilon", ctypes.c_double), ("weight_decay", ctypes.c_double),
                ("momentum", ctypes.c_double), ("clip_norm", ctypes.c_double), ("shard", ctypes.c_int),
                ("compress", ctypes.c_int),
                ("hook", ctypes.c_void_p * 3), ("powersgd_rank", ctypes.c_int), ("powersgd_seed", ctypes.c_uint32),
                ("powersgd_start", ctypes.c_int64), ("powersgd_rate", ctypes.c_double),
                ("powersgd_no_feedback", ctypes.c_bool), ("powersgd_no_warm_start", ctypes.c_bool),
                ("local_steps", ctypes.c_int64), ("local_start", ctypes.c_int64), ("memory", ctypes.c_int),
                ("stream", ctypes.c_void_p), ("loss", ctypes.c_int), ("unused", ctypes.c_int),
                ("nesterov", ctypes.c_bool), ("muon_match_rms", ctypes.c_bool), ("muon_iterations", ctypes.c_int),
                ("adafactor_decay", ctypes.c_double), ("adafactor_least_scale", ctypes.c_double),
                ("adafactor_clip", ctypes.c_double), ("bf16_params", ctypes.c_bool), ("late_gather", ctypes.c_bool),
                ("loss_scale", ctypes.c_double), ("loss_scale_interval", ctypes.c_int64), ("loss_scaling", ctypes.c_int),
                ("params_memory", ctypes.c_void_p), ("grads_memory", ctypes.c_void_p)]

    def __init__(self, **given):
        super().__init__(size=ctypes.sizeof(Options), **given)


def skip(reason):
    print("1..0 # SKIP " + reason)
    sys.exit(0)


def load():
    """The library that DDP_LIBRARY names; libruntime/.libs/libddp.so by default."""
    path = os.path.abspath(os.environ.get("DDP_LIBRARY", "libruntime/.libs/libddp.so"))
    with open(path, "rb") as file:
        content = file.read()
    if b"__asan_init" in content or b"__tsan_init" in content:
        skip("Python cannot load a library built with a sanitizer")
    library = ctypes.CDLL(path)
    library.ddp_last_error.restype = ctypes.c_char_p
    for name in ("ddp_world", "ddp_model_param_data", "ddp_model_param_grad"):
        getattr(library, name).restype = ctypes.c_void_p
    library.ddp_comm_rank.argtypes = [ctypes.c_void_p]
    library.ddp_model_free.restype = None
    return library


def check(library, status):
    if status != 0:
        raise RuntimeError(library.ddp_last_error().decode())
