#!/usr/bin/env python3
"""Mutation testing: plants faults in a copy of the source and sees whether the tests notice.

usage: mutate.py [--preset dev|asan|tsan] [--random N] [--seed S] [--tests REGEX] [--long] [--save FILE | --load FILE] [--keep DIR] [NAME ...]

Without --random: the mutants of the table MUTANTS, or those of it that are named. Each has to be noticed by the tests
that its row names; one that survives is a failure. With --random: N faults at places chosen at random in the product's C
sources (conditions turned over, bounds shifted by one, calls left out), each built and given to the tests of the commit
gate, or, with --long, to all tests, until the first one fails. --save writes the chosen places to a file and runs
nothing; --load runs those of a file, which may be another revision's: a place is its function and its line's text, and
is skipped where there is no such line. So two revisions' gates can be compared on the same faults.

Faults that only leak or race are noticed by the sanitizers' builds (--preset).

Prints a line for each mutant (killed by TEST | survived | does not build | not found) and a total. Exit status: 1 a
mutant of the table survived or no longer applies, 2 bad usage. No GPU is needed."""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ["kernels", "proto", "transport", "daemon", "client", "collective"]

# name: (file, the text that is there once, what replaces it, regex of the tests of which one has to fail)
MUTANTS = {}

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

    def __init__(self, folder, preset):
        self.preset = preset
        self.root = pathlib.Path(folder)
        if not (self.root / "CMakeLists.txt").exists():
            files = run(["git", "-C", str(ROOT), "ls-files", "-z"]).stdout.split("\0")
            for name in filter(None, files):
                source, target = ROOT / name, self.root / name
                if source.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, target)
        python = ROOT / "build/python/bin/python3"
        setting = [f"-DPython3_EXECUTABLE={python}"] if python.exists() else []
        result = run(["cmake", "--preset", preset, "-DSTRAIT_CUDA=OFF", "-DSTRAIT_WERROR=OFF", *setting], cwd=self.root)
        if result.returncode or not self.build():
            sys.exit(f"mutate.py: the source does not build unchanged in {self.root}\n{result.stdout[-2000:]}")

    def build(self):
        return run(["cmake", "--build", "--preset", self.preset], cwd=self.root).returncode == 0

    def failing_test(self, tests, with_long):
        """The first test that fails, or None."""
        command = ["ctest", "--test-dir", f"build/{self.preset}", "--stop-on-failure", "-j", str(2 * (os.cpu_count() or 1)),
                   "-LE", "gpu|layering|python" if with_long else "gpu|layering|python|long"]
        if tests:
            command += ["-R", tests]
        output = run(command, cwd=self.root).stdout
        match = re.search(r"Test\s+#\d+: (\S+) \.*\*\*\*", output)
        return match.group(1) if match else None

    def verdict(self, path, change, tests, with_long):
        original = path.read_text()
        path.write_text(change(original))
        try:
            if not self.build():
                return "does not build"
            failed = self.failing_test(tests, with_long)
            return f"killed by {failed}" if failed else "survived"
        finally:
            path.write_text(original)


def run_table(copy, names):
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        sys.exit(f"mutate.py: no mutant {unknown[0]}; there are: {' '.join(MUTANTS)}")
    bad = 0
    for name in names or MUTANTS:
        file, old, new, tests = MUTANTS[name]
        path = copy.root / file
        if not path.exists() or path.read_text().count(old) != 1:
            result = "not found"
        else:
            result = copy.verdict(path, lambda text: text.replace(old, new), tests, True)
        bad += not result.startswith("killed")
        print(f"{name}: {result}", flush=True)
    return bad


def run_places(copy, places, tests, with_long):
    counts = {}
    for place in places:
        where = find(copy.root, place)
        if where is None:
            result = "not found"
        else:
            path, number = where

            def change(text):
                lines = text.split("\n")
                indent = lines[number][:len(lines[number]) - len(lines[number].lstrip())]
                lines[number] = indent + place["mutated"]
                return "\n".join(lines)

            result = copy.verdict(path, change, tests, with_long)
        counts[result.split(" by ")[0]] = counts.get(result.split(" by ")[0], 0) + 1
        print(f"{place['file']} {place['function']}: {place['line']}  =>  {place['mutated']}: {result}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--preset", choices=["dev", "asan", "tsan"], default="dev")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
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
    copy = Copy(options.keep, options.preset)
    if places is not None:
        run_places(copy, places, options.tests, options.long)
        return 0
    return 1 if run_table(copy, options.names) else 0


if __name__ == "__main__":
    sys.exit(main())
