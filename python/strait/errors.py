"""Exceptions: one class per status code of the C library."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Status(enum.IntEnum):
    """enum strait_status. Page statuses hold these numbers."""

    OK = 0
    ERR_INVALID = -1
    ERR_NO_MEMORY = -2
    ERR_NO_SPACE = -3
    ERR_ALIGNMENT = -4
    ERR_TRUNCATED = -5
    ERR_CORRUPT = -6
    ERR_UNSUPPORTED = -7
    ERR_CODEBOOK = -8
    ERR_INTEGRITY = -9
    ERR_PAGE_ID = -10
    ERR_IO = -11
    ERR_AGAIN = -12
    ERR_DEVICE = -13
    ERR_TIMEOUT = -14


class Error(Exception):
    """Base of everything that Strait raises, except for plain TypeError and ValueError on arguments that make no sense.

    status: the Status, or the bare number when this binding does not know it.
    page_status: int32 array with one Status per page of the list when single pages failed; None when the call or the
        chunk as a whole failed (then no page was written).
    """

    def __init__(self, message: str, status: int = Status.ERR_INVALID, page_status: NDArray[np.int32] | None = None):
        super().__init__(message)
        self.status: int = Status(status) if status in Status.__members__.values() else status
        self.page_status = page_status

    @property
    def failed_pages(self) -> list[int]:
        """Indices, in the page list, of the pages that failed; empty when no single page is to blame."""
        return [] if self.page_status is None else [int(page) for page in np.flatnonzero(self.page_status)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), int(self.status), self.page_status)


class InvalidError(Error, ValueError):
    """An argument is out of range; as a page status: the page's size differs from the chunk's."""


class OutOfMemoryError(Error, MemoryError):
    """The library could not allocate."""


class NoSpaceError(Error, ValueError):
    """A destination is smaller than encode_bound()."""


class AlignmentError(Error, ValueError):
    """An address or stride is not a multiple of the element size."""


class PageIdError(Error, IndexError):
    """A page id is not below the page count of its pool."""


class CodebookError(Error):
    """The chunk was encoded with another codebook, or a table is not in the codebook."""


class DataError(Error):
    """The bytes are to blame, not the call: base of the four classes below."""


class TruncatedError(DataError):
    """The bytes end early."""


class CorruptError(DataError):
    """The bytes break a rule of the format."""


class UnsupportedError(DataError):
    """A version, mode or element type that this library does not know."""


class IntegrityError(DataError):
    """A checksum does not match."""


class FileError(Error, OSError):
    """Input or output failed."""


class AgainError(Error):
    """Not yet: try again later."""


class DeviceError(Error):
    """A GPU refused or failed."""


class TimedOutError(Error, TimeoutError):
    """Another rank was waited for in vain."""


class CollectiveError(Error):
    """NCCL, or libstrait-coll in its place, is missing, refused a call or failed.

    result: what NCCL returned (ncclResult_t); 0 when it was not asked.
    """

    def __init__(self, message: str, result: int = 0):
        super().__init__(message, Status.ERR_DEVICE)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)


CLASSES: dict[int, type[Error]] = {
    Status.ERR_INVALID: InvalidError,
    Status.ERR_NO_MEMORY: OutOfMemoryError,
    Status.ERR_NO_SPACE: NoSpaceError,
    Status.ERR_ALIGNMENT: AlignmentError,
    Status.ERR_TRUNCATED: TruncatedError,
    Status.ERR_CORRUPT: CorruptError,
    Status.ERR_UNSUPPORTED: UnsupportedError,
    Status.ERR_CODEBOOK: CodebookError,
    Status.ERR_INTEGRITY: IntegrityError,
    Status.ERR_PAGE_ID: PageIdError,
    Status.ERR_IO: FileError,
    Status.ERR_AGAIN: AgainError,
    Status.ERR_DEVICE: DeviceError,
    Status.ERR_TIMEOUT: TimedOutError,
}


def make_error(status: int, message: str, page_status: NDArray[np.int32] | None = None) -> Error:
    """The exception for a status other than OK; a status from a newer library becomes a plain Error."""
    return CLASSES.get(status, Error)(message, status, page_status)
