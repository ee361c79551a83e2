"""The codec and pools in memory of GPUs: anything with __dlpack__ (torch, cupy, jax, ...), or an address.

    codec = cuda.Codec(codebook)                               once for each stream that is to run beside others
    pages = cuda.PageList({("k", 0): k, ("v", 0): v}, ids=[3, 1, 4])
    out = torch.empty(cuda.encode_bound(pages), dtype=torch.uint8, device="cuda")
    job = codec.encode(pages, out)                             queued on the current stream of torch
    ...
    job.wait()                                                 only to learn how it ended, and job.bytes
    codec.decode(out[: job.bytes], others).wait()

Needs the driver, and for the codec a GPU of compute capability 9.0 or later; torch and the like only where memory of
theirs is used. Imported on its own.
"""

from ._driver import available, device_count
from .array import Array, Event, Memory, alloc
from .codec import Codec, Job, Outcome, encode_bound
from .pages import PageList

__all__ = [
    "Array",
    "Codec",
    "Event",
    "Job",
    "Memory",
    "Outcome",
    "PageList",
    "alloc",
    "available",
    "device_count",
    "encode_bound",
]
