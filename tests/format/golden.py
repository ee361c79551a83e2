#!/usr/bin/env python3
"""Golden vectors of kernels/FORMAT.md against the model: the bytes of tests/data/golden, which are frozen.

    python3 tests/format/golden.py                                  exit code 0: the model reads and writes just these; or 1
    python3 tests/format/golden.py --add NAME ELEMENT ASKED SET PAGE:TABLE ...
                                                                    one more chunk, of pages in files; SET "-": no codebook

manifest.json: `sets` (a file of 256 bytes per table, the id), `chunks` (to be encoded and decoded exactly so),
`refused` (chunks with the chunk error or the page statuses that a decoder must report), `files`.
"""
import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np

import model as fm

TESTS = Path(__file__).resolve().parents[1]
FOLDER = TESTS / "data" / "golden"


def read(entry):
    return (FOLDER / entry["file"]).read_bytes()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read_sets(manifest):
    return {entry["name"]: fm.TableSet(np.frombuffer(read(entry), np.uint8)) for entry in manifest["sets"]}


def entry_of(name, set_name, asked, element, pages, page_tables, chunk):
    """The manifest's row of a chunk."""
    modes = sorted({block.mode for page in fm.parse_chunk(chunk)[1] for block in page.blocks})
    return {"name": name, "file": name + ".bin", "set": set_name, "asked": asked, "element": element,
            "page_lengths": [len(page) for page in pages], "page_tables": page_tables, "block_modes": modes,
            "source_sha256": sha256(b"".join(pages)), "chunk_bytes": len(chunk), "chunk_sha256": sha256(chunk)}


def check_set(entry, sets):
    tables = sets[entry["name"]]
    return (len(tables), tables.id.hex()) == (entry["tables"], entry["id"])


def check_chunk(entry, sets):
    """Decoded, the chunk holds the pages of which it was made; encoded again, they are the chunk."""
    chunk, tables = read(entry), sets.get(entry["set"])
    error, decoded = fm.decode_chunk(chunk, tables)
    if error is not None or any(status is not None for status, _ in decoded):
        return False
    pages = [page for _, page in decoded]
    element, asked, page_tables = entry["element"], entry["asked"], [page.table for page in fm.parse_chunk(chunk)[1]]
    return fm.encode_chunk(pages, page_tables, tables, element, asked) == chunk and entry == entry_of(
        entry["name"], entry["set"], asked, element, pages, page_tables, chunk)


def check_refused(entry, sets):
    chunk = read(entry)
    error, pages = fm.decode_chunk(chunk, sets.get(entry["set"]))
    told = (error, [status or "ok" for status, _ in pages], sha256(chunk))
    return (error or any(status for status, _ in pages)) and told == (
        entry["chunk_error"], entry["page_statuses"], entry["chunk_sha256"])


def check_file(entry, _):
    data = read(entry)
    preamble, tables, _ = fm.parse_file_head(data)
    chunks = [data[offset:offset + size] for offset, _, size, _ in fm.parse_footer(data)[1]]
    original = fm.decode_file(data)
    return fm.encode_file(preamble, chunks, tables, original) == data and (
        len(data), len(original), sha256(original)) == (entry["bytes"], entry["original_bytes"], entry["original_sha256"])


def documented_example():
    """The bytes that stand in the worked example of FORMAT.md."""
    text = (TESTS.parent / "kernels" / "FORMAT.md").read_text("utf-8").split("## 10. Worked example")[1].split("## 11.")[0]
    return bytes.fromhex("".join(re.findall(r"^ *\d+  ((?:[0-9a-f]{2,32} ?)+)(?:  |$)", text, re.MULTILINE)))


def add(manifest, name, element, asked, set_name, *pages):
    set_name = None if set_name == "-" else set_name
    paths, page_tables = zip(*(page.rsplit(":", 1) for page in pages))
    pages, page_tables = [Path(path).read_bytes() for path in paths], [int(table) for table in page_tables]
    chunk = fm.encode_chunk(pages, page_tables, read_sets(manifest).get(set_name), int(element), asked)
    manifest["chunks"].append(entry_of(name, set_name, asked, int(element), pages, page_tables, chunk))
    (FOLDER / (name + ".bin")).write_bytes(chunk)
    (FOLDER / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def main():
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    if sys.argv[1:2] == ["--add"]:
        return add(manifest, *sys.argv[2:])
    sets, wrong, names = read_sets(manifest), [], {"manifest.json"}
    for kind, check in ("sets", check_set), ("chunks", check_chunk), ("refused", check_refused), ("files", check_file):
        for entry in manifest[kind]:
            names.add(entry["file"])
            if not check(entry, sets):
                wrong.append(entry["name"])
    wrong += sorted(names ^ {path.name for path in FOLDER.iterdir()})
    if documented_example() != (FOLDER / "example.bin").read_bytes():
        wrong.append("FORMAT.md")
    print("golden vectors:", "differ: " + " ".join(wrong) if wrong else "%d files, equal" % len(names))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
