"""The codec and pools in memory of GPUs: anything with __dlpack__ or __cuda_array_interface__ (torch, cupy, jax, ...).

    codec = cuda.Codec(codebook)                               once for each stream that is to run beside others
    pages = cuda.PageList({("k", 0): k, ("v", 0): v}, ids=[3, 1, 4])
    job = codec.encode(pages)                                  queued on the current stream of torch
    ...
    job.wait()                                                 only to learn how it ended, and job.chunk
    codec.decode(job.chunk, others).wait()

Needs the driver, and for the codec a GPU of compute capability 8.0 or later; torch or cupy only where it is to allocate
chunks. Imported on its own.
"""

from ._driver import alloc, available, device_count
from .codec import Codec, Job, Outcome, encode_bound
from .pages import PageList

__all__ = ["Codec", "Job", "Outcome", "PageList", "alloc", "available", "device_count", "encode_bound"]
