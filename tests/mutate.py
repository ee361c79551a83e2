#!/usr/bin/env python3
"""Mutation testing: plants faults in a copy of the source and sees whether the tests notice.

usage: mutate.py [--preset dev|asan|tsan] [--random N] [--seed S] [--jobs N] [--tests REGEX] [--long] [--save FILE | --load FILE] [--keep DIR] [NAME ...]

Without --random: the mutants of the table MUTANTS, or those of it that are named. Each has to be noticed by the tests
that its row names, or by cells of tests/chaos; one that survives is a failure. With --random: N faults at places chosen at random in the product's C
sources (conditions turned over, bounds shifted by one, calls left out), each built and given to the tests of the commit
gate, or, with --long, to all tests, until the first one fails. --save writes the chosen places to a file and runs
nothing; --load runs those of a file, which may be another revision's: a place is its function and its line's text, and
is skipped where there is no such line. So two revisions' gates can be compared on the same faults. --jobs N plants that
many at once, each in a copy and a build of its own.

Faults that only leak or race are noticed by the sanitizers' builds (--preset).

Prints a line for each mutant (killed by TEST | survived | does not build | not found) and a total. Exit status: 1 a
mutant of the table survived or no longer applies, 2 bad usage. No GPU is needed."""
import argparse
import concurrent.futures
import filecmp
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ["kernels", "proto", "transport", "daemon", "client", "collective", "checkpoint"]

# A chunk counts as landed before it is decoded.
ACKNOWLEDGE = [
    ("daemon/sink.c", "    struct node *node = owner;\n    const struct slot *slot = &node->receive.slots[cookie];\n",
     "    struct node *node = owner;\n    if (result->nanoseconds != UINT64_MAX)\n        return;\n"
     "    const struct slot *slot = &node->receive.slots[cookie];\n"),
    ("daemon/sink.c", "    if (status != STRAIT_OK) {\n        struct leg_event event = {.type = SINK_DECODED,",
     "    if (status == STRAIT_OK) {\n        sink_landed(sink, grant->id, &(const struct job_result){.raw_bytes = 0});\n"
     "    } else {\n        struct leg_event event = {.type = SINK_DECODED,")]
# Pages count as free while a job writes to them.
DRAINED = [("daemon/expectation.c", "        if (!sink->leg.drained)\n            return false;",
            "        if (!sink->leg.drained)\n            return true;")]
CHAOS_FAKE = " --memory fake --plugin tests/chaos-fake --behind tests/fakes/device/libstrait-node-cuda.so.0"
WRONG_BYTES = r"transfer \d+ is DONE, but page \d+ of the sink has other bytes"
WRONG_CHUNK = r"failed for nothing: source (chunk could not be decoded|checksum mismatch)"
WRITTEN_LATE = r"page \d+ of pool \S+ changed, although nobody expects it"

# name: (edits, test). An edit is a file, the text that is there once, and what replaces it. A test is a regex of the
# tests of which one has to fail; or "chaos", options of tests/chaos for the cells in which the fault can be seen and no
# other rule is broken first, and a regex of the violation that it has to print.
MUTANTS = {
    "acknowledge": (ACKNOWLEDGE, ("chaos --state 5", WRONG_BYTES)),
    # A chunk of another leg or epoch is accepted.
    "epoch": ([("daemon/sink.c", "               ? slot\n               : NULL;",
                "               ? slot\n               : slot;")],
              ("chaos --fault 21 --state 2", f"{WRONG_BYTES}|{WRONG_CHUNK}")),
    "drained": (DRAINED, ("chaos --fault 15 --state 7", WRITTEN_LATE)),
    "acknowledge-device": (ACKNOWLEDGE, ("chaos --state 5" + CHAOS_FAKE, WRONG_BYTES)),
    "drained-device": (DRAINED, ("chaos --fault 15 --state 7" + CHAOS_FAKE, WRITTEN_LATE)),
}

# Faults at random places: what is sought in a line of code, and what replaces it.
OPERATORS = [
    (re.compile(r"^(\s*)if \((.*)\)$"), r"\1if (!(\2))"),
    (re.compile(r"(?<=[\w)\]]) < (?=[\w(])"), " <= "),
    (re.compile(r"(?<=[\w)\]]) > (?=[\w(])"), " >= "),
    (re.compile(r"(?<=[\w)\]]) == (?=[\w(])"), " != "),
    (re.compile(r" && "), " || "),
    (re.compile(r" \|\| "), " && "),
    (re.compile(r"(?<=[\w)\]]) \+ 1(?!\w)"), ""),
    (re.compile(r"(?<=[\w)\]]) - 1(?!\w)"), ""),
    (re.compile(r"(?<=[\w)\]]) \+= (?=[\w(])"), " -= "),
    (re.compile(r"^(\s+)([a-z]\w*\([^;]*\));$"), r"\1(void)0; /* \2 */"),
    (re.compile(r"\btrue\b"), "false"),
    (re.compile(r"\bfalse\b"), "true"),
]
FUNCTION = re.compile(r"^[a-z][^;={}]*?\b(\w+)\([^;{}]*$")


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def source_files(root):
    for folder in SOURCES:
        yield from sorted(p for p in (root / folder).rglob("*.c") if "cuda" not in p.parts)


def functions(path):
    """(function, line number, line) of every line of code in a body; comments and asserts are left out."""
    name = None
    comment = False
    for number, line in enumerate(path.read_text().split("\n")):
        match = FUNCTION.match(line)
        if match:
            name = match.group(1)
        if "/*" in line:
            comment = "*/" not in line
            continue
        if comment:
            comment = "*/" not in line
            continue
        if name and line.startswith(" "):
            yield name, number, line


def choose(root, count, seed):
    """Places chosen at random, each with one operator that changes the line; every folder has its share by size."""
    draw = random.Random(seed)
    places = []
    for path in source_files(root):
        for name, _, line in functions(path):
            for index, (pattern, text) in enumerate(OPERATORS):
                changed = pattern.sub(text, line, count=1)
                if changed != line:
                    places.append({"function": name, "line": line.strip(), "mutated": changed.strip(),
                                   "file": str(path.relative_to(root))})
    once = {}
    for place in places:
        once.setdefault((place["function"], place["line"]), []).append(place)
    single = [place for found in once.values() for place in found[:1]]
    return draw.sample(single, min(count, len(single)))


def find(root, place):
    """(path, line number) of a place in a tree: in the file of that name, else in any."""
    first = root / place["file"]
    paths = ([first] if first.exists() else []) + [p for p in source_files(root) if p != first]
    for path in paths:
        for name, number, line in functions(path):
            if name == place["function"] and line.strip() == place["line"]:
                return path, number
    return None


class Copy:
    """A copy of the source with a build of its own, in which one fault at a time is planted."""

    def __init__(self, folder, preset, jobs=1):
        self.preset = preset
        self.failing = []
        self.parallel = max(2, 2 * (os.cpu_count() or 1) // jobs)
        self.root = pathlib.Path(folder)
        files = run(["git", "-C", str(ROOT), "ls-files", "-z"]).stdout.split("\0")
        for name in filter(None, files):
            source, target = ROOT / name, self.root / name
            if source.is_file() and not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        python = ROOT / "build/python/bin/python3"
        setting = [f"-DPython3_EXECUTABLE={python}"] if python.exists() else []
        result = run(["cmake", "--preset", preset, "-DSTRAIT_CUDA=OFF", "-DSTRAIT_WERROR=OFF", *setting], cwd=self.root)
        if result.returncode or not self.build():
            sys.exit(f"mutate.py: the source does not build unchanged in {self.root}\n{result.stdout[-2000:]}")

    def leave_out_failing(self, with_long):
        """Tests that fail on the unchanged source say nothing of a fault."""
        self.run_tests([], with_long)
        listed = self.root / f"build/{self.preset}/Testing/Temporary/LastTestsFailed.log"
        self.failing = [line.split(":")[1] for line in listed.read_text().split()] if listed.exists() else []
        if self.failing:
            print(f"left out, as they fail unchanged: {' '.join(self.failing)}", flush=True)

    def build(self):
        return run(["cmake", "--build", "--preset", self.preset], cwd=self.root).returncode == 0

    def run_tests(self, options, with_long):
        return run(["ctest", "--test-dir", f"build/{self.preset}", "-j", str(self.parallel),
                    "-LE", "gpu|layering|python" if with_long else "gpu|layering|python|long", *options], cwd=self.root).stdout

    def failing_test(self, tests, with_long):
        """The first test that fails, or None."""
        options = ["--stop-on-failure"] + (["-R", tests] if tests else [])
        if self.failing:
            options += ["-E", f"^({'|'.join(self.failing)})$"]
        output = self.run_tests(options, with_long)
        match = re.search(r"Test\s+#\d+: (\S+) \.*\*\*\*(?!Skipped)", output)
        return match.group(1) if match else None

    def failing_chaos(self, options, says):
        """The violation that chaos finds in some cells, or None."""
        build = self.root / "build" / self.preset
        output = run(["tests/chaos-driver", "--daemon", "tests/straitd-chaos", "--hits", "40", "--seconds", "60", "--partly",
                      "--fail-fast", *options], cwd=build, env={**os.environ, "UCX_MEM_EVENTS": "no"}).stdout
        match = re.search(rf"chaos: FAIL: \d+ violations, the first: .*?({says}).*", output)
        return match.group(0) if match else None

    def verdict(self, edits, failing):
        """Makes the edits ({path: text}), builds, and asks `failing` for what notices them."""
        originals = {path: path.read_text() for path in edits}
        for path, text in edits.items():
            path.write_text(text)
        try:
            if not self.build():
                return "does not build"
            failed = failing()
            return f"killed by {failed}" if failed else "survived"
        finally:
            for path, text in originals.items():
                path.write_text(text)


def edited(root, changes):
    """{path: new text} of a mutant's files; None: a text is not there, or more than once."""
    edits = {}
    for file, old, new in changes:
        path = root / file
        text = edits.get(path) or (path.read_text() if path.exists() else "")
        if text.count(old) != 1:
            return None
        edits[path] = text.replace(old, new)
    return edits


def run_table(copy, names):
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        sys.exit(f"mutate.py: no mutant {unknown[0]}; there are: {' '.join(MUTANTS)}")
    bad = 0
    for name in names or MUTANTS:
        changes, test = MUTANTS[name]
        edits = edited(copy.root, changes)
        if edits is None:
            result = "not found"
        elif isinstance(test, tuple):
            result = copy.verdict(edits, lambda: copy.failing_chaos(test[0].split()[1:], test[1]))
        else:
            result = copy.verdict(edits, lambda: copy.failing_test(test, True))
        bad += not result.startswith("killed")
        print(f"{name}: {result}", flush=True)
    return bad


def try_place(copy, place, tests, with_long):
    where = find(copy.root, place)
    if where is None:
        return "not found"
    path, number = where
    lines = path.read_text().split("\n")
    indent = lines[number][:len(lines[number]) - len(lines[number].lstrip())]
    lines[number] = indent + place["mutated"]
    return copy.verdict({path: "\n".join(lines)}, lambda: copy.failing_test(tests, with_long))


def run_places(copies, places, tests, with_long):
    """Each copy takes the next place until there is none."""
    left = iter(places)
    lock = threading.Lock()
    counts = {}

    def work(copy):
        while True:
            with lock:
                place = next(left, None)
            if place is None:
                return
            result = try_place(copy, place, tests, with_long)
            with lock:
                counts[result.split(" by ")[0]] = counts.get(result.split(" by ")[0], 0) + 1
                print(f"{place['file']} {place['function']}: {place['line']}  =>  {place['mutated']}: {result}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        list(pool.map(work, copies))
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--preset", choices=["dev", "asan", "tsan"], default="dev")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--tests", metavar="REGEX")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--load", metavar="FILE")
    parser.add_argument("--keep", metavar="DIR", default=str(ROOT / "build/mutants"))
    options = parser.parse_args()
    places = None
    if options.load:
        places = json.loads(pathlib.Path(options.load).read_text())
    elif options.random:
        places = choose(ROOT, options.random, options.seed)
    if options.save:
        if places is None:
            parser.error("--save needs --random")
        pathlib.Path(options.save).write_text(json.dumps(places, indent=1))
        return 0
    if places is None:
        return 1 if run_table(Copy(options.keep, options.preset), options.names) else 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        copies = list(pool.map(lambda n: Copy(f"{options.keep}/{n}", options.preset, options.jobs), range(options.jobs)))
    copies[0].leave_out_failing(options.long)
    for copy in copies:
        copy.failing = copies[0].failing
    run_places(copies, places, options.tests, options.long)
    return 0


if __name__ == "__main__":
    sys.exit(main())
