"""Codebooks: which exponents are frequent, for each kind of tensor; made by calibrate()."""

from __future__ import annotations

import ctypes
import enum
import os
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._abi import lib
from ._views import ArrayLike, array_view, check_dtype, element_of


class Role(enum.IntEnum):
    """Role of a tensor in attention."""

    OTHER = 0
    K = 1
    V = 2
    KV = 3  # K and V in one tensor


class Class(NamedTuple):
    """Class of tensors that a table was calibrated for; layer None: of no layer.

    Role OTHER with a layer of 2^30 or more is a kind: values that one table fits, whatever their names. `strait encode`
    finds its table by the values.
    """

    role: Role
    layer: int | None


#: How a class is written: (role, layer), with role "k", "v", "other" or a Role and layer a number or None; a tensor
#: name such as "layers.3.k", see class_of(); or a Role alone, of no layer.
ClassLike: TypeAlias = Class | tuple[Role | str, int | None] | Role | str

# The default rules of the strait command (tools/classes.c): the first match gives the role, its first group of digits
# the layer. A cached K is a part of its own at the end of a name; names of weights end in another or a longer part.
_LAYER = r"(^|[./])([A-Za-z_]*(layers?|blocks?|blk)[._/]?|h[./])([0-9]+)"
_NUMBER = r"(^|[./])([0-9]+)"
_BETWEEN = r"[./](.*[./])?"
_CACHED = {
    Role.K: r"(past_|cached?_)?(k|key|keys)(_cache|_states?)?",
    Role.V: r"(past_|cached?_)?(v|value|values)(_cache|_states?)?",
}
_PIECE = r"([._/][0-9]+)?\Z"
_INDEX = r"[._/](l|layers?[._/]?)?([0-9]+)\Z"
_RULES: list[tuple[re.Pattern[str], Role]] = [
    (re.compile(pattern, re.DOTALL), role)
    for pattern, role in [
        *((_LAYER + _BETWEEN + cached + _PIECE, role) for role, cached in _CACHED.items()),
        *((_NUMBER + _BETWEEN + cached + r"\Z", role) for role, cached in _CACHED.items()),
        *((r"(^|[./])" + cached + _INDEX, role) for role, cached in _CACHED.items()),
        *((r"(^|[./])" + cached + r"\Z", role) for role, cached in _CACHED.items()),
        (_LAYER + r"([._/]|\Z)", Role.OTHER),
    ]
]
_NAME_MAX = 4096  # no model has longer names
_KIND_LAYER = 1 << 30  # layers of role OTHER from here on are kinds (kernels/codebook.proto)
_KINDS_MAX = 64


def class_of(wanted: ClassLike) -> Class:
    """The class that `wanted` means.

    A name is read as the strait command reads it: "layers.3.k", "model.layers.3.self_attn.v_cache" and "key_cache.3"
    are of K or V and layer 3, "k" is of K and no layer, "layers.3.mlp.weight" is of role OTHER and layer 3, "embedding"
    of OTHER and no layer.
    ValueError: an unknown role, a layer that is negative or does not fit 31 bits.
    """
    if isinstance(wanted, Role):
        return Class(wanted, None)
    if isinstance(wanted, str):
        return _class_of_name(wanted)
    role, layer = wanted
    if isinstance(role, str):
        names = {member.name.lower(): member for member in Role}
        if role.lower() not in names:
            raise ValueError(f"role {role!r} is none of {', '.join(names)}")
        role = names[role.lower()]
    if layer is not None and not 0 <= layer < 2**31:
        raise ValueError(f"layer {layer} is out of range")
    return Class(Role(role), None if layer is None else int(layer))


def _class_of_name(name: str) -> Class:
    for pattern, role in _RULES if len(name) <= _NAME_MAX else ():
        match = pattern.search(name)
        if match:
            number = next((group for group in match.groups() if group and re.fullmatch("[0-9]+", group)), None)
            layer = None if number is None or int(number) >= 2**31 else int(number)
            return Class(role, layer)
    return Class(Role.OTHER, None)


def _to_abi(wanted: Class) -> _abi.Class:
    return _abi.Class(int(wanted.role), -1 if wanted.layer is None else wanted.layer)


class Codebook:
    """An immutable set of tables, each a ranking of the 256 exponents. Made by calibrate(), load() or from_bytes().

    Two codebooks are equal when their ids are: the tables are the same. Any number of threads may use one codebook.
    It can be pickled. Its memory goes with the object; what is handed out are copies.
    """

    __slots__ = ("__weakref__", "_handle")
    _handle: int

    def __init__(self) -> None:
        raise TypeError("use calibrate(), Codebook.load(), Codebook.from_bytes() or Codebook.from_rankings()")

    @classmethod
    def _own(cls, handle: ctypes.c_void_p) -> Codebook:
        assert handle.value is not None
        self = cls.__new__(cls)
        self._handle = handle.value
        weakref.finalize(self, lib.strait_codebook_destroy, self._handle).atexit = False
        return self

    @classmethod
    def from_rankings(cls, rankings: ArrayLike, classes: Sequence[ClassLike] | None = None) -> Codebook:
        """Makes a set of explicit tables.

        rankings: uint8 [tables, 256], each row a permutation of 0..255, most frequent exponent first; row 0 is the
            fallback.
        classes: one per row (that of row 0 is ignored); None: the tables are found by index only.
        InvalidError: a row is no permutation, a class comes twice, no tables or more than 65535.
        """
        rows = array_view(rankings, "rankings")
        if rows.ndim != 2 or rows.shape[1] != 256 or rows.dtype != np.uint8:
            raise ValueError(f"rankings must be uint8 [tables, 256], not {rows.dtype} {list(rows.shape)}")
        if classes is not None and len(classes) != len(rows):
            raise ValueError(f"{len(rows)} rankings, but {len(classes)} classes")
        rows = np.ascontiguousarray(rows)
        table = None if classes is None else (_abi.Class * len(rows))(*[_to_abi(class_of(c)) for c in classes])
        handle = ctypes.c_void_p()
        _abi.check(lib.strait_codebook_create(rows.ctypes.data, table, len(rows), handle), "codebook")
        return cls._own(handle)

    @classmethod
    def from_bytes(cls, data: ArrayLike) -> Codebook:
        """Reads what to_bytes() wrote. CorruptError, TruncatedError, UnsupportedError (written by a newer version)."""
        view = array_view(data, "data")
        content = view.tobytes()
        handle = ctypes.c_void_p()
        _abi.check(lib.strait_codebook_parse(content, len(content), handle), "codebook")
        return cls._own(handle)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Codebook:
        """Reads a codebook file, such as `strait calibrate` writes. OSError, or what from_bytes() raises."""
        return cls.from_bytes(Path(path).read_bytes())

    def to_bytes(self) -> bytes:
        """The protobuf form, the content of a codebook file. Not canonical: compare ids, not these bytes."""
        content = ctypes.create_string_buffer(lib.strait_codebook_serialized_size(self._handle))
        _abi.check(lib.strait_codebook_serialize(self._handle, content, len(content)), "codebook")
        return content.raw

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a codebook file: beside the path first, then renamed, so that no half file is ever seen. OSError."""
        final = Path(path)
        partial = final.with_name(f".{final.name}.{os.getpid()}.part")
        try:
            partial.write_bytes(self.to_bytes())
            os.replace(partial, final)
        finally:
            partial.unlink(missing_ok=True)

    @property
    def id(self) -> bytes:
        """16 bytes that name the tables; a chunk names the codebook it needs by them."""
        return ctypes.string_at(lib.strait_codebook_id(self._handle), _abi.CODEBOOK_ID_BYTES)

    def __len__(self) -> int:
        """Number of tables."""
        return int(lib.strait_codebook_count(self._handle))

    def ranking(self, table: int) -> NDArray[np.uint8]:
        """uint8 [256]: the exponents of a table, most frequent first; read-only. IndexError."""
        self._check_table(table)
        return np.frombuffer(ctypes.string_at(lib.strait_codebook_ranking(self._handle, table), 256), np.uint8)

    def cls(self, table: int) -> Class:
        """Class that a table was calibrated for; (OTHER, None) for table 0, the fallback. IndexError."""
        self._check_table(table)
        found = lib.strait_codebook_class(self._handle, table)
        return Class(Role(found.role), None if found.layer < 0 else found.layer)

    def expected_bits(self, table: int) -> float | None:
        """Bits that mode tiered spent on an exponent of what a table was made of; None: not known. IndexError."""
        self._check_table(table)
        thousandths: int = lib.strait_codebook_expected(self._handle, table)
        return thousandths / 1000 if thousandths else None

    def counts(self, table: int) -> NDArray[np.uint64] | None:
        """uint64 [256]: the values per exponent that a table was made of; None: not known. IndexError."""
        self._check_table(table)
        counts = lib.strait_codebook_counts(self._handle, table)
        return None if counts is None else np.frombuffer(ctypes.string_at(counts, 256 * 8), np.uint64)

    def find(self, wanted: ClassLike, layer: int | None = None) -> int:
        """Index of the table to use for a class: find("k", 3), find(("k", 3)), find("layers.3.k").

        That of exactly this role and layer, else that of the role without layer, else 0.
        """
        found = class_of(wanted)
        if layer is not None:
            if found.layer is not None:
                raise ValueError(f"the layer is given twice: {wanted!r} and {layer}")
            found = class_of((found.role, layer))
        return int(lib.strait_codebook_find(self._handle, _to_abi(found)))

    def _check_table(self, table: int) -> None:
        if not 0 <= table < len(self):
            raise IndexError(f"table {table} of a codebook of {len(self)}")

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Codebook) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<strait.Codebook {self.id.hex()}, {len(self)} tables>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Codebook.from_bytes, (self.to_bytes(),)


def _kind_of(element: str, name: str) -> Class:
    """The class that a tensor of role OTHER is counted under before kinds are joined, as in tools/kinds.c: 30 bits of
    FNV-1a of type and name."""
    value = 0xCBF29CE484222325
    for byte in element.encode() + b"\0" + name.encode(errors="surrogatepass") + b"\0":
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return Class(Role.OTHER, _KIND_LAYER | value >> 34)


def _join(kinds: list[NDArray[np.uint64]]) -> list[NDArray[np.uint64]]:
    """Histograms that are alike become one."""
    if not kinds:
        return []
    counts, group, made = np.ascontiguousarray(kinds), np.empty(len(kinds), np.uint32), ctypes.c_uint32()
    status = lib.strait_histogram_group(counts.ctypes.data, len(kinds), _KINDS_MAX, group.ctypes.data, made)
    _abi.check(status, "codebook")
    return [counts[group == g].sum(axis=0, dtype=np.uint64) for g in range(made.value)]


_Histograms: TypeAlias = dict["Class | None", NDArray[np.uint64]]  # None: of values that were given without


class Counts:
    """How often each exponent occurs in values of each class: what codebooks are made of. Counts of parts, such as
    those of several processes, add up to the counts of the whole. Can be pickled.

    element: "bf16", "fp16" or "fp32", which mode "split" codes with the same tables; None: what the dtype of each array
        says, and BF16 where it says nothing. Then classes are made of BF16 values, if there are any.
        ValueError: another one.
    """

    def __init__(self, element: str | None = "bf16"):
        if element is not None and element not in _TABLE_ELEMENTS:
            raise ValueError(f"element {element!r} has no tables: one of {', '.join(_TABLE_ELEMENTS)}")
        self.element = element
        self._by_element: dict[str, _Histograms] = {}
        self._kinds: _Histograms = {}
        self._other_kinds: _Histograms = {}  # of roles K and V, which count where classes are of BF16 values alone

    def add(self, array: ArrayLike, wanted: ClassLike | None = None, *, element: str | None = None) -> None:
        """Counts the values of an array; without a class they count for the fallback alone.

        element: of this array, where it is not said for all.
        A name of role OTHER counts for a kind too: see Codebook.cls().
        """
        key = None if wanted is None else class_of(wanted)
        view = array_view(array, "the array" if wanted is None else f"the array of {wanted!r}")
        element = self.element or element or element_of(view.dtype)
        if element not in _TABLE_ELEMENTS:
            raise ValueError(f"element {element!r} has no tables: one of {', '.join(_TABLE_ELEMENTS)}")
        counts = np.zeros(256, np.uint64)
        _count(counts, view, element)
        _add(self._by_element.setdefault(element, {}), key, counts)
        if isinstance(wanted, str) and key is not None:
            if key.role == Role.OTHER:
                _add(self._kinds, _kind_of(element, wanted), counts)
            elif self.element is None and element != "bf16":
                _add(self._other_kinds, _kind_of(element, wanted), counts)

    def __iadd__(self, other: Counts) -> Counts:
        """ValueError: counts of another element."""
        if self.element != other.element:
            raise ValueError(f"counts of {self.element} and of {other.element} cannot be added")
        for element, classes in other._by_element.items():
            for key, counts in classes.items():
                _add(self._by_element.setdefault(element, {}), key, counts)
        for mine, kinds in ((self._kinds, other._kinds), (self._other_kinds, other._other_kinds)):
            for key, counts in kinds.items():
                _add(mine, key, counts)
        return self

    @property
    def values(self) -> int:
        """How many were counted."""
        return sum(int(counts.sum()) for classes in self._by_element.values() for counts in classes.values())

    def _classes(self) -> _Histograms:
        """Of BF16 values, or, if there are none, of all."""
        bf16 = self._by_element.get("bf16", {})
        if any(counts.any() for counts in bf16.values()):
            return bf16
        classes: _Histograms = {}
        for of_element in self._by_element.values():
            for key, counts in of_element.items():
                _add(classes, key, counts)
        return classes

    def codebook(self) -> Codebook:
        """A table for each class that has values, one for each kind, and the fallback, of all classes. The codebook
        tells the counts that it was made of. ValueError: there are none."""
        classes = self._classes()
        counts = {key: count for key, count in classes.items() if key is not None and count.any()}
        total = sum(classes.values(), np.zeros(256, np.uint64))
        if not total.any():
            raise ValueError("no values to calibrate with")
        for k, count in list(counts.items()):
            v, both = Class(Role.V, k.layer), Class(Role.KV, k.layer)
            if k.role == Role.K and v in counts and both not in counts:
                counts[both] = count + counts[v]
        kinds = self._kinds
        if classes is self._by_element.get("bf16"):
            kinds = {**self._kinds}
            for key, count in self._other_kinds.items():
                _add(kinds, key, count)
        for number, count in enumerate(_join([kind for kind in kinds.values() if kind.any()])):
            counts[Class(Role.OTHER, _KIND_LAYER + number)] = count
        order = sorted(counts, key=lambda wanted: (wanted.role, -1 if wanted.layer is None else wanted.layer))
        table = np.ascontiguousarray([total, *(counts[wanted] for wanted in order)], np.uint64)
        named = (_abi.Class * len(table))(*[_to_abi(wanted) for wanted in [Class(Role.OTHER, None), *order]])
        handle = ctypes.c_void_p()
        status = lib.strait_codebook_create_counted(table.ctypes.data, named, len(table), handle)
        _abi.check(status, "codebook")
        return Codebook._own(handle)


def _add(histograms: _Histograms, key: Class | None, counts: NDArray[np.uint64]) -> None:
    histograms[key] = histograms[key] + counts if key in histograms else counts


def calibrate(arrays: Mapping[Any, Any] | ArrayLike | Iterable[ArrayLike], *, element: str | None = "bf16") -> Codebook:
    """Makes a codebook for data like these.

    arrays: values of any shape: BF16 (uint16, ml_dtypes.bfloat16, torch.bfloat16, or bytes), or of `element`.
        A mapping of class to array, or to an iterable of arrays, gives one table per class and the fallback, which is
        of everything; keys as for class_of(): ("k", 3), or a name such as "layers.3.k". A class of no layer,
        ("k", None), serves the layers that have no table. `strait calibrate` makes the same of the same tensors.
        One array or an iterable of arrays gives the fallback alone.
        Names of role OTHER make kinds too, each of values that one table fits.
        A million values per class are plenty. Arrays that are not contiguous are copied, one at a time.
    element: as for Counts, which takes the arrays one by one; None: what the dtypes say.
    A layer of which there are K and V also gets a table of both together, ("kv", layer), for pools that have them in
        one tensor.
    Table 0 is the fallback, the others follow in order of (role, layer), of no layer first.
    ValueError: no values at all, or another element. TypeError: an array that does not hold such values.
    """
    counts = Counts(element)
    for key, group in arrays.items() if isinstance(arrays, Mapping) else [(None, arrays)]:
        for array in _flat(group):
            counts.add(array, key)
    return counts.codebook()


def _flat(group: Any) -> Iterable[Any]:
    """The arrays of a group: itself when it is one."""
    try:
        array_view(group, "array")
    except TypeError:
        if isinstance(group, Iterable) and not isinstance(group, str):
            return group
    return [group]


_TABLE_ELEMENTS = {"bf16": 2, "fp16": 2, "fp32": 4}  # bytes of a value


def _count(counts: NDArray[np.uint64], array: NDArray[Any], element: str) -> None:
    check_dtype(array.dtype, element, "the array")
    values = np.ascontiguousarray(array)
    count = values.nbytes // _TABLE_ELEMENTS[element]
    status = lib.strait_histogram_add_values(counts.ctypes.data, _abi.ELEMENTS[element], values.ctypes.data, count)
    _abi.check(status, "calibrate")


def codebook_handle(codebook: Codebook | None) -> int | None:
    """Handle of a codebook in the library; the object must outlive its use. TypeError."""
    if codebook is not None and not isinstance(codebook, Codebook):
        raise TypeError(f"codebook must be a strait.Codebook, not {type(codebook).__name__}")
    return None if codebook is None else codebook._handle
