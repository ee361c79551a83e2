"""Pools of the fake driver's memory. To be imported where that driver is."""

import numpy as np
from conftest import values_like_kv
from fake_gpu import Tensor, zeros

from strait import cuda

SHAPE = (64, 16, 4, 32)  # pages, tokens, heads, values: 4 KiB


def kv(seed=0, shape=SHAPE):
    return values_like_kv(int(np.prod(shape)), seed=seed).reshape(shape)


def pools(layers=3, fill=True, **where):
    classes = [(role, layer) for layer in range(layers) for role in "kv"]
    return {cls: Tensor(kv(i) if fill else np.zeros(SHAPE, np.uint16), **where) for i, cls in enumerate(classes)}


def on_host(pools):
    return {cls: tensor.values for cls, tensor in pools.items()}


def room(pages, **how):
    return zeros(cuda.encode_bound(pages, **how), "uint8")
