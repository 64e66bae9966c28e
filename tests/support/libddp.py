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


class Muon(ctypes.Structure):
    """ddp_muon_options."""
    _fields_ = [("match_rms", ctypes.c_bool), ("iterations", ctypes.c_int)]


class Adafactor(ctypes.Structure):
    """ddp_adafactor_options."""
    _fields_ = [("decay", ctypes.c_double), ("least_scale", ctypes.c_double), ("clip", ctypes.c_double)]


class LossScaling(ctypes.Structure):
    """ddp_loss_scaling."""
    _fields_ = [("kind", ctypes.c_int), ("initial", ctypes.c_double), ("interval", ctypes.c_int64)]


class PowerSGD(ctypes.Structure):
    """ddp_powersgd_options."""
    _fields_ = [("rank", ctypes.c_int), ("seed", ctypes.c_uint32), ("start", ctypes.c_int64),
                ("min_rate", ctypes.c_double), ("feedback", ctypes.c_bool), ("warm_start", ctypes.c_bool)]


class LocalSGD(ctypes.Structure):
    """ddp_local_sgd_options."""
    _fields_ = [("steps", ctypes.c_int64), ("start", ctypes.c_int64)]


AUTO = -1


class Options(ctypes.Structure):
    """ddp_model_options, which begin as DDP_MODEL_OPTIONS, as far as a test needs them."""
    _fields_ = [("size", ctypes.c_size_t), ("optimizer", ctypes.c_int), ("learning_rate", ctypes.c_double),
                ("beta1", ctypes.c_double), ("beta2", ctypes.c_double), ("epsilon", ctypes.c_double),
                ("momentum", ctypes.c_double), ("weight_decay", ctypes.c_double), ("clip_norm", ctypes.c_double),
                ("nesterov", ctypes.c_bool), ("muon", Muon), ("adafactor", Adafactor), ("loss_scaling", LossScaling),
                ("loss", ctypes.c_int), ("unused", ctypes.c_int), ("shard", ctypes.c_int), ("compress", ctypes.c_int),
                ("powersgd", PowerSGD), ("local_sgd", LocalSGD), ("hook", ctypes.c_void_p * 3),
                ("bucket_mb", ctypes.c_double), ("first_bucket_mb", ctypes.c_double), ("late_gather", ctypes.c_bool),
                ("bf16_params", ctypes.c_bool), ("memory", ctypes.c_int), ("stream", ctypes.c_void_p),
                ("params_memory", ctypes.c_void_p), ("grads_memory", ctypes.c_void_p)]

    def __init__(self, **given):
        defaults = {
            "size": ctypes.sizeof(Options), "learning_rate": 1e-3, "beta1": AUTO, "beta2": AUTO, "epsilon": AUTO,
            "momentum": AUTO, "muon": Muon(False, 5), "adafactor": Adafactor(0.8, 1e-3, 1),
            "loss_scaling": LossScaling(0, 65536, 2000), "powersgd": PowerSGD(1, 0, 0, 2, True, True),
            "bucket_mb": AUTO, "first_bucket_mb": AUTO,
        }
        super().__init__(**{**defaults, **given})


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
