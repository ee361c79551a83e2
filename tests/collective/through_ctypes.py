"""through_ctypes.py LIBSTRAIT_COLL FAKE: NCCL called as vLLM's pynccl does, through ctypes, with ours as the library.

It is opened by its own path, as VLLM_NCCL_SO_PATH names it; STRAIT_COLL_NCCL names the fake."""
import ctypes
import os
import sys

ID_BYTES = 128
BF16, SUM = 9, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * ID_BYTES)]


def declare(library):
    comm = stream = buffer = ctypes.c_void_p
    functions = {
        "ncclGetVersion": [ctypes.POINTER(ctypes.c_int)],
        "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
        "ncclCommInitRank": [ctypes.POINTER(comm), ctypes.c_int, UniqueId, ctypes.c_int],
        "ncclAllReduce": [buffer, buffer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, comm, stream],
        "ncclSend": [buffer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, comm, stream],
        "ncclGroupStart": [],
        "ncclGroupEnd": [],
        "ncclCommDestroy": [comm],
    }
    for name, arguments in functions.items():
        getattr(library, name).restype = ctypes.c_int
        getattr(library, name).argtypes = arguments
    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclGetErrorString.argtypes = [ctypes.c_int]
    library.strait_coll_report.restype = ctypes.c_size_t
    library.strait_coll_report.argtypes = [comm, ctypes.c_char_p, ctypes.c_size_t]
    return library


def report(library, comm):
    text = ctypes.create_string_buffer(1 << 16)
    assert 0 < library.strait_coll_report(comm, text, len(text)) <= len(text)
    return [" ".join(line.split()) for line in text.value.decode().splitlines()]


def main():
    ours, fake_path = sys.argv[1:]
    os.environ["STRAIT_COLL_NCCL"] = fake_path
    os.environ["STRAIT_COLL"] = "auto"
    nccl = declare(ctypes.CDLL(ours))
    fake = ctypes.CDLL(fake_path)
    fake.fake_take.restype = ctypes.c_char_p

    version = ctypes.c_int()
    assert nccl.ncclGetVersion(ctypes.byref(version)) == 0 and version.value == 23203
    unique = UniqueId()
    for i in range(ID_BYTES):
        unique.internal[i] = i - 64
    comm = ctypes.c_void_p()
    fake.fake_take()
    assert nccl.ncclCommInitRank(ctypes.byref(comm), 4, unique, 2) == 0 and comm.value
    lines = fake.fake_take().decode().splitlines()
    assert bytes(unique).hex() in lines[0] and lines[0].endswith(" 2"), lines
    # There is no plugin here: ranks that have one are told so where all meet, and NCCL is asked for nothing.
    assert lines[1:] == [], lines

    assert nccl.ncclAllReduce(0x1000, 0x2000, 1 << 33, BF16, SUM, comm, 0x3000) == 0
    expected = f"AllReduce 0x1000 0x2000 {1 << 33} {BF16} {SUM} {hex(comm.value)} 0x3000\n"
    assert fake.fake_take().decode() == expected
    assert nccl.ncclGroupStart() == 0 and nccl.ncclSend(0, 8, BF16, 1, comm, 0) == 0 and nccl.ncclGroupEnd() == 0
    fake.fake_answer(6, 0)
    assert nccl.ncclSend(0, 8, BF16, 1, comm, 0) == 6
    fake.fake_answer(0, 0)
    assert nccl.ncclGetErrorString(6) == b"the last error"

    lines = report(nccl, comm)
    assert any(line.endswith(", rank 2 of 4") for line in lines), lines
    assert any(line.startswith(f"all_reduce bf16 1 {1 << 34} 0 0 0 ") for line in lines), lines
    assert any(line.startswith("send bf16 1 16 1 0 1 ") for line in lines), lines
    assert nccl.ncclCommDestroy(comm) == 0
    print("ctypes: all passed")


if __name__ == "__main__":
    main()
