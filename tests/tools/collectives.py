#!/usr/bin/env python3
"""collectives.py STRAIT STRAITD PULL: `strait collectives report` merges the reports of all ranks, says in what they
differ, and names files that are none. What real processes write is looked at by coll_report."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from coll_reports import communicator, operation, process, write
from daemons import Folder, expect, finish, strait


def report(*words: object) -> tuple[int, str, str]:
    answer = strait("collectives", "report", *words)
    return answer.returncode, answer.stdout, answer.stderr


def line_with(text: str, words: str) -> str:
    return next((line for line in text.splitlines() if words in line), "")


def all_ranks(folder: Path) -> None:
    """Four ranks on two hosts, of which rank 0 has compared times."""
    for rank in range(4):
        gathers = operation("all_gather", compared=3 if rank == 0 else 0, x=1.3125 if rank == 0 else None)
        sends = operation("send", "int32", calls=rank, compressed=0, plain_bytes=0, wire_bytes=0, overflows=0)
        sends |= {"bytes": rank * 1024, "raw": [{"why": "type is not compressed", "calls": rank, "bytes": rank * 1024}]}
        receives = operation("recv", overflows=rank)  # each rank sees those of its own alone
        host = "node-a" if rank < 2 else "node-b"
        write(folder, rank, process(communicator(rank, 4, gathers, sends, receives), host=host, process=1000 + rank))
    code, text, error = report(folder)
    expect(code == 0 and not error, (code, error))
    expect("communicator 0123456789ab, 4 ranks on 2 hosts, running, last written" in text, text)
    expect("rails" not in text, text)
    expect("joined (STRAIT_COLL=auto)" in text, text)
    expect("links        all_gather 11.25, all_to_all 10.5, overflow 2.8, encode 990, decode 1100 GB/s" in text, text)
    expect("of a GPU 256.0 MiB for messages and 1.0 MiB besides, of a host 128.0 MiB" in text, text)
    gathers_row = "all_gather bf16 100 64.0 MiB 90.0 % 1.50 1.31 1.50 2 10.00 % timed, to compare 10.0 %"
    expect(" ".join(line_with(text, "all_gather     bf16").split()) == gathers_row, text)
    expect(" ".join(line_with(text, "send").split()).startswith("send int32 0-3 1.0 KiB 0.0 % - -"), text)
    expect("differs" not in text and "no report" not in text, text)
    code, text, error = report("--json", folder)
    document = json.loads(text)
    (group,) = document["communicators"]
    row = group["operations"][0]
    expect(code == 0 and len(document["processes"]) == 4 and group["reported"] == 4 and not group["ended"], document)
    expect((row["calls"], row["calls_most"], row["compressed"], row["overflows"]) == (400, 100, 360, 2), row)
    (receives,) = (row for row in group["operations"] if row["operation"] == "recv")
    expect((receives["calls"], receives["overflows"]) == (400, 6), receives)
    expect((row["x"], row["expected_x"], row["ratio"], row["compressed_part"]) == (1.3125, 1.5, 1.5, 0.9), row)
    expect([member["rank"] for member in group["members"]] == [0, 1, 2, 3], group["members"])


def rails(folder: Path) -> None:
    """Four ranks on two hosts, whose sums go by rail."""
    for rank in range(4):
        one = communicator(rank, 4, operation("reduce_scatter"), rails=2)
        one["links"] |= {"local": 200.5, "rail": 12.25}
        write(folder, rank, process(one, process=1000 + rank))
    code, text, error = report(folder)
    expect(code == 0 and not error, (code, error))
    expect("overflow 2.8, local 200.5, rail 12.25, encode 990" in text, text)
    expect("sums         inside each host, then between hosts by 2 rails" in text, text)
    (group,) = json.loads(report("--json", folder)[1])["communicators"]
    expect((group["rails"], group["links"]["rail"]) == (2, 12.25), group)


def differences(folder: Path) -> None:
    """A rank that is missing, one with other settings, one that was restarted, and calls that do not match."""
    ended = {"ended": True}
    write(folder, 0, process(communicator(0, 8, operation("all_gather"), **ended)))
    write(folder, 1, process(communicator(1, 8, operation("all_gather", calls=90), **ended), mode="compress"))
    write(folder, 2, process(communicator(2, 8, **ended), written=1.0))
    write(folder, 3, process(communicator(2, 8, operation("all_gather"), table="", **ended), nccl=23007))
    write(folder, 4, process(communicator(7, 8, operation("all_gather"), state="raw", **ended), exited=True))
    code, text, error = report(folder)
    expect(code == 0 and not error and ", ended" in text, (code, error, text))
    for said in (
        "no report    of ranks 3 to 6",
        "rank 1: STRAIT_COLL is compress, of rank 0 auto",
        "rank 2: NCCL is 23007, of rank 0 22809",
        "rank 2 decides by other sizes than rank 0",
        "rank 2 is there twice",
        "rank 7: the state is raw, of rank 0 joined",
        "all_gather bf16: some ranks have called it 90 times, and some 100 times",
    ):
        expect(said in text, f"not said: {said}: {text}")


def foreign(folder: Path) -> None:
    """Names with escape sequences reach no terminal; bad files are named, and the others are shown."""
    host, why = "node\x1b[31m", "raw\x1b]0;title\x07, \u202e"
    row = operation("all_gather", raw=[{"why": why, "calls": 100, "bytes": 1}], compressed=0)
    good = write(folder, 0, process(communicator(0, 1, row, why=why, id="\x1b[2J"), host=host, mode="\x9b1m"))
    code, text, error = report(good)
    expect(code == 0 and not error and "\x1b" not in text and "\x9b" not in text and "\\x1b" in text, (code, text))
    code, text, error = report("--json", good)
    expect(json.loads(text)["processes"][0]["host"] == host and "\x1b" not in text, text)
    bad = {
        1: process(communicator(0, 1, operation("all_gather", calls=-1))),
        2: process(communicator(3, 2)),
        3: process(schema_version=2),
        4: {"schema": "strait top"},
        5: process(communicator(0, 1, operation("\x1b[31m"))),
        6: process(communicator(0, 1), host=1),
        7: [],
    }
    for number, document in bad.items():
        write(folder, number, document)
    (folder / "strait-coll-node-8-1.json").write_bytes(b'{"schema":\x00')
    (folder / "strait-coll-node-9-1.json").symlink_to("/dev/zero")
    os.mkfifo(folder / "strait-coll-node-10-1.json")
    with (folder / "strait-coll-node-11-1.json").open("wb") as large:
        large.truncate(1 << 40)
    code, text, error = report(folder)
    expect(code == 1 and "communicator" in text, (code, text))
    for number in range(1, 12):
        expect(f"strait-coll-node-{number}-1.json: " in error, f"{number} is not named: {error}")
    expect("schema_version is not 1" in error and "\x1b" not in error, error)


def usage(folder: Path) -> None:
    expect(report()[0] == 2 and report("--nothing", folder)[0] == 2, "wrong options")
    expect(strait("collectives").returncode == 2 and strait("collectives", "x").returncode == 2, "no such part")
    code, text, error = report(folder)
    expect(code == 1 and "no reports" in error and text == "", (code, text, error))
    code, _, error = report(folder / "nowhere")
    expect(code == 1 and "No such file" in error, (code, error))
    write(folder, 0, process())
    code, text, _ = report(folder)
    expect(code == 0 and "no communicators" in text, (code, text))


def reasons_are_explained() -> None:
    """Each reason for which a call stays raw is in the page's table."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs/collectives.md").read_text()
    table = page.split("| why it is raw |")[1].split("\n\n")[0]
    code = (root / "collective/engine/decide.c").read_text()
    reasons = set(re.findall(r'"([^"\n]+)"', re.sub(r"^#include.*$", "", code, flags=re.M)))
    code = (root / "collective/group.c").read_text().split("reason_to_stay_raw(")[1].split("\n}")[0]
    reasons |= set(re.findall(r'"([^"\n]+)"', code)) | {"timed, to compare"}
    expect(len(reasons) > 20, f"reasons: {reasons}")
    for reason in sorted(reasons - {"ending", "one rank", "nothing is known of it"}):
        expect(reason in table, f"not explained: {reason}")


def main() -> None:
    reasons_are_explained()
    for check in (all_ranks, rails, differences, foreign, usage):
        with Folder() as folder:
            check(folder.path)
    finish()


main()
