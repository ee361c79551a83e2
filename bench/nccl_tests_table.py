#!/usr/bin/env python3
"""The table of bench/nccl_tests.sh: what nccl-tests measured with and without libstrait-coll, side by side.

  nccl_tests_table.py FOLDER [WAYS]

FOLDER has OP.CASE.WAY.ROUND.log, the output of nccl-tests, WAY plain or strait, and .err beside it, with the report of
libstrait-coll; WAYS tells which of them there are: "plain strait" or strait. Bus bandwidths are medians over the rounds;
"x" is the median of the quotients of each round. Exit status 1: a result is wrong, a run printed nothing or ended badly,
or one has no partner.
"""

import collections
import os
import re
import statistics
import sys

# size count type redop root | time algbw busbw wrong, out of place | the same in place
ROW = re.compile(r"^\s+(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(.*)$")
PLACES = ("out", "in")
SHOWN_FROM = 1 << 20  # bytes; below it times are all latency, and the whole table is in the folder

Measured = collections.namedtuple("Measured", "us busbw wrong")


def places_of(text):
    """What a row says of out of place and in place; None where nothing was measured."""
    fields = text.split()
    found = []
    for at in range(0, min(len(fields), 8) - 3, 4):
        us, _, busbw, wrong = fields[at:at + 4]
        measured = us != "N/A" and busbw != "N/A"
        found.append(Measured(float(us), float(busbw), 0 if wrong == "N/A" else float(wrong)) if measured else None)
    return found + [None] * (2 - len(found))


def read_log(path):
    """{size: (out of place, in place)} and whether the program ended well."""
    rows, ended = {}, False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            match = ROW.match(line)
            if match:
                rows[int(match.group(1))] = places_of(match.group(6))
            ended = ended or line.startswith("exit 0:")
    return rows, ended


def way_of(path, operation):
    """How libstrait-coll says that an operation went: the last column of its last report. nccl-tests' sendrecv is a
    send and a recv; the others are called as their calls are."""
    names = {"alltoall": "all_to_all", "sendrecv": "send"}
    row = re.compile(r"^" + names.get(operation, operation) + r"\s+\w+((?:\s+\d+){5,9})\s+([^\d\s].*)$")
    found = "not reported"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                match = row.match(line)
                if match:
                    numbers = match.group(1).split()
                    counted = f" ({numbers[5]} of {numbers[0]} calls compressed)" if len(numbers) > 5 else ""
                    found = match.group(2).strip() + counted
    except OSError:
        pass
    return found


class Case:
    """One operation, type and layout: what was measured, by way and round."""

    def __init__(self, ways):
        self.ways = ways
        self.rounds = {"plain": {}, "strait": {}}
        self.ended = True
        self.way = "not reported"

    def add(self, folder, name, way, number, operation):
        rows, ended = read_log(os.path.join(folder, name))
        self.rounds[way][number] = rows
        self.ended = self.ended and ended and bool(rows)
        if way == "strait":
            self.way = way_of(os.path.join(folder, name[:-len("log")] + "err"), operation)

    def sizes(self):
        return sorted({size for rounds in self.rounds.values() for rows in rounds.values() for size in rows})

    def values(self, way, size, place):
        """{round: busbw}"""
        found = {number: rows[size][place] for number, rows in self.rounds[way].items() if size in rows}
        return {number: measured.busbw for number, measured in found.items() if measured is not None}

    def wrong(self, way, size):
        return sum(measured.wrong for rows in self.rounds[way].values() for measured in rows.get(size, ())
                   if measured is not None)

    def paired(self):
        if self.ways == ["strait"]:
            return not self.rounds["plain"]
        return self.rounds["plain"].keys() == self.rounds["strait"].keys() and all(
            self.rounds["plain"][number].keys() == rows.keys() for number, rows in self.rounds["strait"].items())

    def verdict(self):
        if any(self.wrong(way, size) for way in self.rounds for size in self.sizes()):
            return "WRONG"
        return "ok" if self.ended and self.paired() else "FAILED"

    def quotient(self, size, place):
        """Of the two bandwidths, None where one was not measured or is 0 (no byte went)."""
        plain, strait = self.values("plain", size, place), self.values("strait", size, place)
        quotients = [strait[number] / plain[number] for number in plain if plain[number] > 0 and number in strait]
        return statistics.median(quotients) if quotients else None


def read_cases(folder, ways):
    cases = collections.OrderedDict()
    pattern = re.compile(r"^(\w+)\.([\w-]+)\.(plain|strait)\.(\d+)\.log$")
    for name in sorted(os.listdir(folder)):
        match = pattern.match(name)
        if match:
            operation, case, way, number = match.groups()
            cases.setdefault((operation, case), Case(ways)).add(folder, name, way, int(number), operation)
    return cases


def number_text(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def median_of(values):
    return statistics.median(values.values()) if values else None


def row_of(key, case, size):
    texts = [f"{key[0]:<15}{key[1]:<21}{size:>11}"]
    for place in range(len(PLACES)):
        texts.append(f"{number_text(median_of(case.values('plain', size, place)), 2):>9}")
        texts.append(f"{number_text(median_of(case.values('strait', size, place)), 2):>9}")
        texts.append(f"{number_text(case.quotient(size, place), 3):>7}")
    texts.append(f"{case.wrong('plain', size):>8g}{case.wrong('strait', size):>8g}")
    return "".join(texts)


HEAD = (f"{'operation':<15}{'case':<21}{'bytes':>11}" + "".join(f"{'plain':>9}{'strait':>9}{'x':>7}" for _ in PLACES)
        + f"{'wrong':>8}{'wrong':>8}\n{'':<47}{'out of place, busbw GB/s':>25}{'in place, busbw GB/s':>25}"
        + f"{'plain':>8}{'strait':>8}")


def summary_of(key, case):
    """One line: the median quotient of what is large, and whether all of it is right."""
    large = [case.quotient(size, place) for size in case.sizes() if size >= 32 * SHOWN_FROM
             for place in range(len(PLACES))]
    large = [quotient for quotient in large if quotient is not None]
    return (f"{key[0]:<15}{key[1]:<21}{number_text(statistics.median(large) if large else None, 3):>7}  "
            f"{case.verdict():<6}  {case.way}")


def write_table(folder, cases):
    with open(os.path.join(folder, "table.txt"), "w", encoding="utf-8") as file:
        print(HEAD, file=file)
        for key, case in cases.items():
            for size in case.sizes():
                print(row_of(key, case, size), file=file)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    cases = read_cases(sys.argv[1], (sys.argv[2] if len(sys.argv) == 3 else "plain strait").split())
    if not cases:
        print(f"{sys.argv[1]}: no logs")
        return 1
    write_table(sys.argv[1], cases)
    print(HEAD)
    for key, case in cases.items():
        for size in case.sizes():
            if size >= SHOWN_FROM or case.wrong("plain", size) + case.wrong("strait", size) > 0:
                print(row_of(key, case, size))
    print(f"\n{'operation':<15}{'case':<21}{'x':>7}  check   way of libstrait-coll (x: median from 32 MiB on)")
    for key, case in cases.items():
        print(summary_of(key, case))
    return 0 if all(case.verdict() == "ok" for case in cases.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
