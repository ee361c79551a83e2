"""Foreign memory as numpy arrays, never copied, and which dtypes may hold which element type."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer

    class SupportsArrayInterface(Protocol):
        @property
        def __array_interface__(self) -> dict[str, Any]: ...

    class SupportsNumpy(Protocol):  # torch.Tensor
        def numpy(self) -> Any: ...


#: What the functions take as an array: numpy, the buffer protocol, __array_interface__, or a torch CPU tensor.
ArrayLike: TypeAlias = Union[NDArray[Any], "Buffer", "SupportsArrayInterface", "SupportsNumpy"]

# dtype names, so that ml_dtypes need not be there.
_BYTES = {"uint8", "int8"}
_DTYPES = {
    "bf16": _BYTES | {"uint16", "int16", "bfloat16"},
    "fp16": _BYTES | {"uint16", "int16", "float16"},
    "fp32": _BYTES | {"uint32", "int32", "float32"},
    "fp8_e4m3": _BYTES | {"float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz"},
    "fp8_e5m2": _BYTES | {"float8_e5m2", "float8_e5m2fnuz"},
}
_STANDS_FOR = "strait.dtype"
#: Types that say what their values are; integers and bytes do not.
_TYPED = {name: element for element, names in _DTYPES.items() for name in names if "int" not in name}
_DECODED: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
}


def array_view(source: ArrayLike, what: str) -> NDArray[Any]:
    """The memory of `source` as an array of the same shape. TypeError when that is not possible without a copy."""
    if isinstance(source, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array, whose mask would be lost: give its data")
    if isinstance(source, np.ndarray):
        return source
    if type(source).__module__.partition(".")[0] == "torch":
        return _torch_view(source, what)
    if hasattr(source, "__array_interface__"):
        return np.asarray(source)
    if hasattr(source, "__cuda_array_interface__"):
        raise TypeError(f"{what} is in GPU memory: strait.cuda is for that, this is for CPU memory")
    try:
        return np.asarray(memoryview(source))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} must be an array or a buffer, not {type(source).__name__}") from None


def _torch_view(tensor: Any, what: str) -> NDArray[Any]:
    if tensor.device.type != "cpu":
        raise TypeError(f"{what} is a tensor on {tensor.device}: strait.cuda is for that, this is for CPU memory")
    tensor = tensor.detach()
    if not tensor.is_floating_point() or tensor.element_size() > 2 or str(tensor.dtype) == "torch.float16":
        view: NDArray[Any] = tensor.numpy()
        return view
    torch = __import__("torch")  # numpy has neither bfloat16 nor the 8-bit floats
    bits: NDArray[Any] = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy()
    return bits.view(_named(str(tensor.dtype).removeprefix("torch."), bits.dtype.itemsize))


def _named(name: str, size: int) -> np.dtype[Any]:
    """Unsigned integers that remember which type they stand for: numpy has none of that name."""
    return np.dtype(f"u{size}", metadata={_STANDS_FOR: name})


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of the type of the values: also of one that numpy does not have."""
    known = dtype.metadata
    return dtype.name if known is None else str(known.get(_STANDS_FOR, dtype.name))


def described(source: ArrayLike, array: NDArray[Any]) -> tuple[tuple[int, ...] | None, np.dtype[Any] | str | None]:
    """Shape and dtype of an array, of a tensor of torch as "torch.NAME"; of a buffer None, whose values are unknown."""
    if type(source).__module__.partition(".")[0] == "torch":
        return array.shape, str(source.dtype)  # type: ignore[union-attr]
    if isinstance(source, np.ndarray) or hasattr(source, "__array_interface__"):
        return array.shape, array.dtype
    return None, None


def dtype_of(dtype: Any) -> tuple[np.dtype[Any], Any]:
    """The dtype of arrays that a dtype, its name, or a type of torch or "torch.NAME" says, and torch's, or None.

    TypeError where there is none.
    """
    name = str(dtype)
    if name.startswith("torch."):
        torch = __import__("torch")
        name = name.removeprefix("torch.")
        of_torch = getattr(torch, name, None)
        if not isinstance(of_torch, torch.dtype):
            raise TypeError(f"torch has no dtype {name}")
        size: int = of_torch.itemsize
        try:
            return np.dtype(name), of_torch
        except TypeError:
            return _named(name, size), of_torch
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        if not isinstance(dtype, str):
            raise
        found = _of_ml_dtypes(name)
    if found.hasobject:
        raise TypeError(f"arrays of dtype {found} hold no values of their own")
    if found.itemsize == 0:
        raise TypeError(f"values of dtype {dtype!r} have no bytes")
    return found, None


def has_torch() -> bool:
    try:
        __import__("torch")
    except ModuleNotFoundError as failure:
        if failure.name != "torch":
            raise
        return False
    return True


def dtype_here(stored: np.dtype[Any] | str | None) -> np.dtype[Any] | str | None:
    """What a Chunk knows, for decode(): of torch's where that is not installed the dtype that numpy itself has of that
    name, or None."""
    if not isinstance(stored, str) or has_torch():
        return stored
    try:
        found: np.dtype[Any] = np.dtype(stored.removeprefix("torch."))
    except TypeError:
        return None
    return found if found.isbuiltin == 1 else None  # 2: of ml_dtypes, if that happens to be loaded


def shape_of(shape: Any) -> tuple[int, ...]:
    """TypeError: it is neither a whole number nor several."""
    try:
        return tuple(operator.index(n) for n in (shape if hasattr(shape, "__iter__") else (shape,)))
    except TypeError:
        raise TypeError(f"a shape is one or more whole numbers, not {shape!r}") from None


def _of_ml_dtypes(name: str) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(getattr(__import__("ml_dtypes"), name))
        return found
    except (ImportError, AttributeError):
        raise TypeError(f"numpy has no dtype {name}, and neither has a package ml_dtypes here") from None


def byte_view(source: ArrayLike, what: str) -> NDArray[np.uint8]:
    """The memory of `source` as one row of bytes. ValueError when it is not contiguous."""
    array = array_view(source, what)
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not contiguous: copy it, or describe it by a PageList")
    return array.reshape(-1).view(np.uint8)


def can_hold(dtype: np.dtype[Any], element: str) -> bool:
    """Whether memory of that dtype is for such elements: it is of their type, of integers of their size or of bytes."""
    if element == "bytes":
        return not dtype.hasobject
    return dtype_name(dtype) in _DTYPES[element] and bool(dtype.isnative)


def element_of(dtype: np.dtype[Any]) -> str:
    """What values of that dtype are; BF16 where it does not say, which numpy has no dtype for."""
    return _TYPED.get(dtype_name(dtype), "bf16")


def check_dtype(dtype: np.dtype[Any], element: str, what: str) -> None:
    """TypeError unless can_hold()."""
    if element != "bytes" and not dtype.isnative:
        raise TypeError(f"{what} is big-endian (dtype {dtype}): give its values as astype(dtype.newbyteorder('='))")
    if not can_hold(dtype, element):
        raise TypeError(
            f"{what} has dtype {dtype_name(dtype)}, which does not hold {element} values; "
            "name what it holds with element=..., or view it as unsigned integers of that size"
        )


def check_writable(array: NDArray[Any], what: str) -> None:
    if not array.flags.writeable:
        raise ValueError(f"{what} is read-only")


def alignment_of(element: str) -> int:
    """Bytes that addresses and strides of such elements are multiples of."""
    return decoded_dtype(element).itemsize


def decoded_dtype(element: str) -> np.dtype[Any]:
    """dtype of a newly decoded array: uint16 for BF16, which numpy does not have."""
    return _DECODED.get(element, np.dtype(np.uint8))
