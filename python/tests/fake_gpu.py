"""Tensors in memory of the fake driver's devices (tests/fakes/cuda.h): the host's, so that tests can look at it."""

import contextlib
import ctypes
import time
import weakref
from ctypes import byref, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import numpy as np

try:
    driver = ctypes.CDLL("libcuda.so.1")
    control = driver.fake_cuda_control
except (OSError, AttributeError):
    driver = None


class Control(ctypes.Structure):
    """struct fake_cuda_control."""

    _fields_ = [
        ("delay_us", c_uint32),
        ("mapped_only", c_uint32),
        ("capturing", c_uint32),
        ("fail", c_uint32),
        ("launches", c_uint32),
        ("waits", c_uint32),
        ("synchronised", c_uint32),
        ("device_bytes", c_int32),
        ("pinned_bytes", c_int32),
        ("events", c_int32),
        ("streams", c_int32),
    ]


def find_control():
    return Control.in_dll(driver, "fake_cuda_control")


def call(name, *arguments):
    assert getattr(driver, name)(*arguments) == 0, name


@contextlib.contextmanager
def on_device(device):
    context = c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxPushCurrent_v2", context)
    yield
    call("cuCtxPopCurrent_v2", byref(context))


class Stream:
    """A stream, as torch has them."""

    def __init__(self, device=0):
        handle = c_void_p()
        with on_device(device):
            call("cuStreamCreate", byref(handle), 1)
        self.cuda_stream = handle.value
        weakref.finalize(self, call, "cuStreamDestroy_v2", c_void_p(handle.value)).atexit = False

    def finish(self):
        call("cuStreamSynchronize", c_void_p(self.cuda_stream))


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("manager", c_void_p), ("deleter", c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]

CODES = {"bfloat16": (4, 16), "int32": (0, 32), "uint8": (1, 8), "uint32": (1, 32), "float16": (2, 16)}
HOLDERS = {"bfloat16": np.uint16}


class Tensor:
    """A tensor with __dlpack__. `values` is its memory, as numpy sees it."""

    versioned, readonly, device_type = True, False, 2

    def __init__(self, values, dtype="bfloat16", device=0, shift=0):
        values = np.asarray(values)
        self.dtype, self.device, self.asked = dtype, device, []
        base = c_void_p()
        with on_device(device):
            call("cuMemAlloc_v2", byref(base), ctypes.c_size_t(max(values.nbytes, 1) + shift))
        memory = (c_uint8 * max(values.nbytes, 1)).from_address(base.value + shift)
        self.values = np.frombuffer(memory, values.dtype, values.size).reshape(values.shape)
        self.values[...] = values
        self._free = weakref.finalize(self, call, "cuMemFree_v2", c_void_p(base.value))
        self._free.atexit = False
        self._base = self

    def __getitem__(self, key):
        """A part of it that shares its memory and keeps it."""
        part = object.__new__(type(self))
        part.__dict__ = dict(self.__dict__, values=self.values[key], asked=[])
        return part

    def __dlpack_device__(self):
        return self.device_type, self.device

    def __dlpack__(self, *, stream=None, **version):
        if version and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        self.asked.append(stream)
        itemsize = self.values.itemsize
        dims = c_int64 * max(self.values.ndim, 1)
        self._kept = shape, strides = dims(*self.values.shape), dims(*(s // itemsize for s in self.values.strides))
        code, bits = CODES[self.dtype] if isinstance(self.dtype, str) else self.dtype
        where = self.values.ctypes.data - 64, self.device_type, self.device
        tensor = DLTensor(*where, self.values.ndim, code, bits, 1, shape, strides, 64)
        if self.values.flags.c_contiguous and not self.versioned:
            tensor.strides = None
        self._managed = Versioned(1, 0, None, None, self.readonly, tensor) if version else Managed(tensor)
        name = b"dltensor_versioned" if version else b"dltensor"
        return new_capsule(ctypes.addressof(self._managed), name, None)


def zeros(shape, dtype="bfloat16", **where):
    return Tensor(np.zeros(shape, HOLDERS.get(dtype, dtype)), dtype, **where)


def pinned(size):
    base = c_void_p()
    with on_device(0):
        call("cuMemHostAlloc", byref(base), ctypes.c_size_t(size), 3)
    return np.frombuffer((c_uint8 * size).from_address(base.value), np.uint8)


def is_idle(stream):
    return driver.cuStreamQuery(c_void_p(stream.cuda_stream)) == 0


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
