"""GPUs of the tests, with one interface: those of the fake driver (tests/fakes/cuda.h), whose memory is the host's, or
real ones by torch. Values are numpy's, uint16 for BF16."""

import contextlib
import ctypes
import struct
import time
import types
import weakref
from ctypes import byref, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_void_p

import numpy as np

try:
    driver = ctypes.CDLL("libcuda.so.1")
    fake = driver.fake_cuda_control  # the real one has none
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


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class Interface:
    """Memory of a GPU by its address."""

    def __init__(self, owner, address, shape, typestr="<u2", **more):
        self.owner = owner
        self.__cuda_array_interface__ = {"version": 3, "shape": shape, "typestr": typestr, "data": (address, False)}
        self.__cuda_array_interface__.update(more)


# ---- The fake driver's ----------------------------------------------------------------------------------------------


class Stream:
    """A stream, as torch has them."""

    def __init__(self, device=0):
        handle = c_void_p()
        with on_device(device):
            call("cuStreamCreate", byref(handle), 1)
        self.cuda_stream = handle.value
        weakref.finalize(self, call, "cuStreamDestroy_v2", c_void_p(handle.value)).atexit = False


class Event:
    """What a stream has come to, as torch has it."""

    def __init__(self, stream):
        event, handle = c_void_p(), ctypes.create_string_buffer(64)
        with on_device(0):
            call("cuEventCreate", byref(event), 6)  # no timing, interprocess
            call("cuEventRecord", event, c_void_p(stream.cuda_stream))
            call("cuIpcGetEventHandle", handle, event)
        self.cuda_event, self._handle = event.value, handle.raw
        weakref.finalize(self, call, "cuEventDestroy_v2", event).atexit = False

    def ipc_handle(self):
        return self._handle

    def query(self):
        return driver.cuEventQuery(c_void_p(self.cuda_event)) == 0


CODES = {
    "bfloat16": (4, 16),
    "int32": (0, 32),
    "uint8": (1, 8),
    "uint32": (1, 32),
    "float16": (2, 16),
    "float32": (2, 32),
}
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]


class Tensor:
    """A tensor with __dlpack__, of no known library. `values` is its memory; `asked` has the streams of exports."""

    versioned, readonly, device_type = True, False, 2

    def __init__(self, values, dtype="bfloat16", device=0):
        values = np.asarray(values)
        self.dtype, self.device, self.asked = dtype, types.SimpleNamespace(type="cuda", index=device), []
        base = c_void_p()
        with on_device(device):
            call("cuMemAlloc_v2", byref(base), c_size_t(max(values.nbytes, 1)))
        memory = (c_uint8 * max(values.nbytes, 1)).from_address(base.value)
        self.values = np.frombuffer(memory, values.dtype, values.size).reshape(values.shape)
        self.values[...] = values
        self.free = weakref.finalize(self, call, "cuMemFree_v2", c_void_p(base.value))
        self.free.atexit = False
        self._base = self

    def __getitem__(self, key):
        """A part of it that shares its memory and keeps it."""
        part = object.__new__(type(self))
        part.__dict__ = dict(self.__dict__, values=self.values[key], asked=[])
        return part

    def data_ptr(self):
        return self.values.ctypes.data

    def detach(self):
        return self

    def __dlpack_device__(self):
        return self.device_type, self.device.index

    def __dlpack__(self, *, stream=None, **version):
        if version and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        self.asked.append(stream)
        ndim, steps = self.values.ndim, (step // self.values.itemsize for step in self.values.strides)
        dims = (c_int64 * (2 * ndim + 1))(*self.values.shape, *steps)
        shape = ctypes.addressof(dims)
        strides = 0 if self.values.flags.c_contiguous and not self.versioned else shape + 8 * ndim
        code, bits = CODES[self.dtype] if isinstance(self.dtype, str) else self.dtype
        where = self.data_ptr() - 64, *self.__dlpack_device__(), ndim
        head = struct.pack("IIQQQ", 1, 0, 0, 0, self.readonly) if version else b""
        tensor = struct.pack("QiiiBBHQQQ", *where, code, bits, 1, shape, strides, 64)
        self._kept = dims, ctypes.create_string_buffer(head + tensor)
        return new_capsule(self._kept[1], b"dltensor_versioned" if version else b"dltensor", None)


class TorchTensor(Tensor):
    """The same, of the library that Fake.torch stands in for."""

    __module__ = "torch"


class Fake:
    """GPUs of the fake driver, and a stand-in for the module torch."""

    devices = 2

    def __init__(self):
        self.control = Control.in_dll(driver, "fake_cuda_control")
        self._current = None
        cuda = types.SimpleNamespace(
            is_available=lambda: True,
            current_stream=lambda device: self._current or types.SimpleNamespace(cuda_stream=0),
            device=on_device,
        )
        self.torch = types.SimpleNamespace(cuda=cuda, uint8="uint8", empty=self._empty)

    def _empty(self, size, dtype, device):
        return TorchTensor(np.zeros(size, np.uint8), dtype, int(device.removeprefix("cuda:")))

    def tensor(self, values, dtype="bfloat16", device=0):
        return TorchTensor(values, dtype, device)

    def values(self, tensor):
        return tensor if isinstance(tensor, np.ndarray) else tensor.values

    def fill(self, tensor, values):
        tensor.values[...] = values

    def pinned(self, size):
        base = c_void_p()
        with on_device(0):
            call("cuMemHostAlloc", byref(base), c_size_t(size), 3)
        return np.frombuffer((c_uint8 * size).from_address(base.value), np.uint8)

    def stream(self, device=0):
        return Stream(device)

    @contextlib.contextmanager
    def current(self, stream):
        self._current = stream
        yield
        self._current = None

    def event(self, stream):
        return Event(stream)

    def slow(self, stream, seconds=0.1):
        """Work on the stream that takes so long."""
        sleep = ctypes.cast(ctypes.CDLL(None).usleep, c_void_p)
        call("cuda_queue", c_void_p(stream.cuda_stream), sleep, c_void_p(int(seconds * 1e6)))

    def copy(self, to, source, stream):
        """Queued on the stream, as a kernel would be that reads the pages."""
        places = c_void_p(to.data_ptr()), c_void_p(source.data_ptr()), c_size_t(to.values.nbytes)
        call("cuMemcpyAsync", *places, c_void_p(stream.cuda_stream))

    def is_idle(self, stream):
        return driver.cuStreamQuery(c_void_p(stream.cuda_stream)) == 0

    def finish(self, stream):
        call("cuStreamSynchronize", c_void_p(stream.cuda_stream))

    def capture(self):
        """All streams are captured, that of the thread among them."""
        return self._capture()

    @contextlib.contextmanager
    def _capture(self):
        self.control.capturing = 1
        yield
        self.control.capturing = 0


# ---- Real ones ------------------------------------------------------------------------------------------------------


class Torch:
    """GPUs of torch."""

    control = None

    def __init__(self, torch):
        self.torch, self.devices = torch, torch.cuda.device_count()

    def tensor(self, values, dtype="bfloat16", device=0):
        values = np.ascontiguousarray(values)
        if values.dtype.kind == "u" and values.itemsize > 1:  # torch lacks most of what it does with these
            values = values.view(f"i{values.itemsize}")
        tensor = self.torch.from_numpy(values.copy()).to(f"cuda:{device}")
        return tensor.view(self.torch.bfloat16) if dtype == "bfloat16" else tensor

    def values(self, tensor):
        host = tensor.detach().cpu().contiguous()
        return (
            host.view(self.torch.int16).numpy().view(np.uint16) if host.dtype == self.torch.bfloat16 else host.numpy()
        )

    def fill(self, tensor, values):
        tensor.view(self.torch.uint8).copy_(self.torch.from_numpy(values.view("u1")))
        self.torch.cuda.synchronize(tensor.device)

    def pinned(self, size):
        return self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True).numpy()

    def stream(self, device=0):
        return self.torch.cuda.Stream(device)

    def current(self, stream):
        return self.torch.cuda.stream(stream)

    def event(self, stream):
        event = self.torch.cuda.Event(interprocess=True)
        event.record(stream)
        return event

    def slow(self, stream, seconds=0.1):
        with self.torch.cuda.stream(stream):
            self.torch.cuda._sleep(int(seconds * 2e9))

    def copy(self, to, source, stream):
        with self.torch.cuda.stream(stream):
            to.copy_(source)

    def is_idle(self, stream):
        return stream.query()

    def finish(self, stream):
        stream.synchronize()

    def capture(self):
        return self.torch.cuda.graph(self.torch.cuda.CUDAGraph())


def find():
    """The GPUs that there are, and why there are none."""
    if driver is not None:
        return Fake(), ""
    try:
        import torch
    except ImportError:
        return None, "torch is not installed"
    if not torch.cuda.is_available():
        return None, "torch sees no GPU"
    if torch.cuda.get_device_capability()[0] < 9:
        return None, "the codec needs compute capability 8.0"
    return Torch(torch), ""
