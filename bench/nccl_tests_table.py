#!/usr/bin/env python3
"""The table of bench/nccl_tests.sh: what nccl-tests measured with and without libstrait-coll, side by side.

  nccl_tests_table.py FOLDER [WAYS]

FOLDER has OP.CASE.WAY.ROUND.log, the output of nccl-tests, and .err beside it, with the report of libstrait-coll. WAY is
plain, for NCCL alone, or how the library was set; WAYS names those that there are to be. Bus bandwidths are medians over
the rounds and the cycles of each; "x" is the median of the quotients of each with NCCL alone, where there is such. Exit
status 1: a result is wrong, a run printed nothing, ended badly or measured other rows than the others, or nothing was
compressed where all that can be should be.
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
COMPRESSED = ("all_gather", "alltoall", "reduce_scatter", "all_reduce")  # by STRAIT_COLL=compress, of two ranks

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
    """{(type, size): [(out of place, in place) of each cycle]} and whether the program ended well. Several small sizes may
    all come to none, one row behind the other: they are one."""
    rows, ended, last = collections.defaultdict(list), False, None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            match = ROW.match(line)
            if match:
                key = match.group(3), int(match.group(1))
                if key != last or key[1] > 0:
                    rows[key].append(places_of(match.group(6)))
                last = key
            ended = ended or line.startswith("exit 0:")
    return rows, ended


class Reported:
    """How libstrait-coll says that an operation went, of all types in its last report. nccl-tests' sendrecv is a send and
    a recv; the others are called as their calls are."""

    def __init__(self, path, operation):
        names = {"alltoall": "all_to_all", "sendrecv": "send"}
        row = re.compile(r"^" + names.get(operation, operation) + r"\s+\w+((?:\s+\d+){5,9})\s+([^\d\s].*)$")
        self.way, self.calls, self.compressed = "not reported", 0, 0
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    self.take(line, row)
        except OSError:
            pass

    def take(self, line, row):
        if re.match(r"^strait-coll \S+, process ", line):
            self.calls = self.compressed = 0
        match = row.match(line)
        if match:
            numbers = [int(number) for number in match.group(1).split()]
            self.calls += numbers[0]
            self.compressed += numbers[5] if len(numbers) > 5 else 0
            self.way = match.group(2).strip()

    def __str__(self):
        return f"{self.way} ({self.compressed} of {self.calls} calls compressed)" if self.calls else self.way


class Case:
    """One operation, layout and way, beside NCCL alone: what was measured, by round and cycle."""

    def __init__(self, way):
        self.way = way
        self.rounds = {"plain": {}, way: {}}
        self.ended = True
        self.reported = None

    def add(self, folder, name, way, number, operation):
        rows, ended = read_log(os.path.join(folder, name))
        self.ended = self.ended and ended and bool(rows)
        for key, cycles in rows.items():
            for cycle, places in enumerate(cycles):
                self.rounds[way].setdefault((number, cycle), {})[key] = places
        if way != "plain":
            self.reported = Reported(os.path.join(folder, name[:-len("log")] + "err"), operation)

    def keys(self):
        return sorted({key for rounds in self.rounds.values() for rows in rounds.values() for key in rows})

    def values(self, way, key, place):
        """{round: busbw}"""
        found = {number: rows[key][place] for number, rows in self.rounds[way].items() if key in rows}
        return {number: measured.busbw for number, measured in found.items() if measured is not None}

    def wrong(self, way, key):
        return sum(measured.wrong for rows in self.rounds[way].values() for measured in rows.get(key, ())
                   if measured is not None)

    def is_complete(self):
        return bool(self.rounds[self.way]) and len({frozenset(rows) for rounds in self.rounds.values()
                                                    for rows in rounds.values()}) == 1

    def verdict(self, operation):
        if any(self.wrong(way, key) for way in self.rounds for key in self.keys()):
            return "WRONG"
        if not self.ended or not self.is_complete():
            return "FAILED"
        can_be = operation in COMPRESSED and any(key[0] in ("bfloat16", "half", "float") for key in self.keys())
        return "RAW" if self.way == "compress" and can_be and not self.reported.compressed else "ok"

    def quotient(self, key, place):
        """Of the two bandwidths, None where one was not measured or is 0 (no byte went)."""
        plain, other = self.values("plain", key, place), self.values(self.way, key, place)
        quotients = [other[number] / plain[number] for number in plain if plain[number] > 0 and number in other]
        return statistics.median(quotients) if quotients else None

    def quotients_from(self, size):
        """[(x, its row)], the worst first."""
        found = [(self.quotient(key, place), f"{key[1]} {key[0]} {PLACES[place]}") for key in self.keys()
                 if key[1] >= size for place in range(len(PLACES))]
        return sorted(pair for pair in found if pair[0] is not None)


def read_cases(folder, ways):
    """{(operation, case, way): Case}; what NCCL alone did belongs to every way."""
    pattern = re.compile(r"^(\w+)\.([\w-]+)\.(\w+)\.(\d+)\.log$")
    names = [match for match in map(pattern.match, sorted(os.listdir(folder))) if match]
    cases = {}
    for match in names:
        operation, case, way, number = match.groups()
        if way != "plain":
            cases.setdefault((operation, case, way), Case(way)).add(folder, match.group(0), way, int(number), operation)
    for match in names:
        operation, case, way, number = match.groups()
        for key in [key for key in cases if way == "plain" and key[:2] == (operation, case)]:
            cases[key].add(folder, match.group(0), way, int(number), operation)
    return {key: cases[key] for key in sorted(cases) if key[2] in ways}


def number_text(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def median_of(values):
    return statistics.median(values.values()) if values else None


def row_of(key, case, row):
    texts = [f"{key[0]:<15}{key[1]:<21}{key[2]:<9}{row[0]:<9}{row[1]:>10}"]
    for place in range(len(PLACES)):
        texts.append(f"{number_text(median_of(case.values('plain', row, place)), 2):>9}")
        texts.append(f"{number_text(median_of(case.values(key[2], row, place)), 2):>9}")
        texts.append(f"{number_text(case.quotient(row, place), 3):>7}")
    texts.append(f"{case.wrong('plain', row):>8g}{case.wrong(key[2], row):>8g}")
    return "".join(texts)


HEAD = (f"{'operation':<15}{'case':<21}{'way':<9}{'type':<9}{'bytes':>10}"
        + "".join(f"{'plain':>9}{'way':>9}{'x':>7}" for _ in PLACES) + f"{'wrong':>8}{'wrong':>8}\n{'':<64}"
        + f"{'out of place, busbw GB/s':>25}{'in place, busbw GB/s':>25}{'plain':>8}{'way':>8}")
SUMMARY_HEAD = (f"{'operation':<15}{'case':<21}{'way':<9}{'rounds':>6}{'x':>7}{'worst':>7}  {'of':<26} check   way of "
                "libstrait-coll\n  x: median from 32 MiB on; worst: of the medians of rows from 1 MiB on")


def summary_of(key, case):
    large = [pair[0] for pair in case.quotients_from(32 * SHOWN_FROM)]
    worst = case.quotients_from(SHOWN_FROM)
    return (f"{key[0]:<15}{key[1]:<21}{key[2]:<9}{len(case.rounds[key[2]]):>6}"
            f"{number_text(statistics.median(large) if large else None, 3):>7}"
            f"{number_text(worst[0][0] if worst else None, 3):>7}  {worst[0][1] if worst else '-':<26} "
            f"{case.verdict(key[0]):<6}  {case.reported}")


def write_table(folder, cases):
    with open(os.path.join(folder, "table.txt"), "w", encoding="utf-8") as file:
        print(HEAD, file=file)
        for key, case in cases.items():
            for row in case.keys():
                print(row_of(key, case, row), file=file)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    ways = (sys.argv[2] if len(sys.argv) == 3 else "plain strait").split()
    cases = read_cases(sys.argv[1], ways)
    if not cases:
        print(f"{sys.argv[1]}: no logs")
        return 1
    write_table(sys.argv[1], cases)
    print(HEAD)
    for key, case in cases.items():
        for row in case.keys():
            paired = "plain" not in ways or any(case.values("plain", row, place) for place in range(len(PLACES)))
            if row[1] >= SHOWN_FROM and paired or case.wrong("plain", row) + case.wrong(key[2], row) > 0:
                print(row_of(key, case, row))
    print(f"\n{SUMMARY_HEAD}")
    for key, case in cases.items():
        print(summary_of(key, case))
    return 0 if all(case.verdict(key[0]) == "ok" for key, case in cases.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
