#!/usr/bin/env python3
"""checkpoint.py STRAIT STRAITD PULL: strait checkpoint on a small training state that ranks have saved."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

from daemons import PATIENCE, STRAIT, Folder, expect, finish, strait


def save(path: Path, ranks: int, change: int = 0) -> Path:
    command = [os.environ["CHECKPOINT_SAMPLE"], path, str(ranks), str(change)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    return path


def told(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    answer = strait("checkpoint", *arguments)
    expect(answer.returncode == code, f"{arguments}: {answer}")
    expect("\x1b" not in answer.stdout + answer.stderr, f"a name reaches the terminal: {arguments}")
    return answer


def document(*arguments: object, code: int = 0) -> dict:
    return json.loads(told(arguments[0], "--json", *arguments[1:], code=code).stdout)


def tensors_of(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Type, shape and bytes of each tensor of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    expect(length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}, path)
    found, end = {}, 0
    for name, one in header.items():
        begin, end_of_one = one["data_offsets"]
        expect(begin == end, f"{path}: a gap before {name}")
        end = end_of_one
        found[name] = (one["dtype"], one["shape"], data[8 + length + begin : 8 + length + end])
    expect(8 + length + end == len(data), f"{path}: bytes at its end")
    return found


def inspects(folder: Path) -> None:
    path = save(folder / "a", 4)
    report = document("inspect", "--shards", path)
    expect(report["kind"] == "checkpoint" and report["files"] == 4 and len(report["tensors"]) == 17, report)
    by_name = {one["name"]: one for one in report["tensors"]}
    weight = by_name["layers.0.weight"]
    expect((weight["dtype"], weight["shape"], weight["stored_bytes"]) == ("BF16", [96, 80], 0), weight)
    expect(all(one["rounded_from"] == "layers.0.master" for one in weight["shard_list"]), weight)
    expect([one["offsets"] for one in weight["shard_list"]] == [[24 * rank, 0] for rank in range(4)], weight)
    expect(by_name["embedding"]["bytes"] == 4 * 96 * 80 * 4, "replicas are counted")
    kinds = {(one["kind"], one["dtype"]): one for one in report["kinds"]}
    expect(kinds["weights", "BF16"]["modes"]["rounded"]["bytes"] == 3 * 2 * 96 * 80, kinds)
    for one in report["kinds"]:
        for size in ("bytes", "stored_bytes"):
            total = sum(mode[size] for mode in one["modes"].values())
            expect(total == one[size], f"{size} of modes: {one}")
    stored = sum(one["stored_bytes"] for one in report["kinds"])
    expect(0.3 * report["stored_bytes"] < stored < report["stored_bytes"], f"{stored} of {report['stored_bytes']}")
    text = told("inspect", "--shards", path).stdout
    expect(re.search(r"^BF16 +4 +15360 +0 +-  layers\.0\.weight  96x80$", text, re.M) is not None, text)
    expect("the rounding of layers.0.master" in text and "rounded" in text, text)
    picture = folder / "a.svg"
    told("inspect", "--svg", picture, path)
    shapes = xml.etree.ElementTree.parse(picture).getroot()
    expect(len(shapes.findall("{http://www.w3.org/2000/svg}rect")) > 10, "bars of the picture")
    expect("exists" in told("inspect", "--svg", picture, path, code=1).stderr, "a picture that is there")
    told("inspect", "--force", "--svg", picture, path)


def verifies_and_names_damage(folder: Path) -> None:
    path = folder / "damaged"
    shutil.copytree(folder / "a", path)
    expect("whole" in told("verify", path).stdout and document("verify", path)["whole"], "a whole checkpoint")
    told("verify", "--quiet", "--cached", "-T1", path)
    data = bytearray((path / "00001.strait").read_bytes())
    data[30000] ^= 1
    (path / "00001.strait").write_bytes(data)
    os.truncate(path / "00002.strait", 50000)
    answer = told("verify", path, code=1)
    expect(answer.stdout == "" and "00001.strait: layers." in answer.stderr, answer)
    expect("00002.strait: input ends early" in answer.stderr, answer)
    report = document("verify", path, code=1)
    files = {one["file"] for one in report["damage"]}
    expect(not report["whole"] and files == {"00001.strait", "00002.strait"}, report)
    expect(any(one.get("values", 0) > 0 for one in report["damage"]), report)
    expect("cannot be read" in told("inspect", path, code=1).stderr, "inspect of a damaged checkpoint")
    told("to-safetensors", path, folder / "none", code=1)
    expect(list((folder / "none").iterdir()) == [], "half a file")
    (path / "strait.index").unlink()
    expect("missing" in told("verify", path, code=1).stderr, "no index")


def compares(folder: Path) -> None:
    save(folder / "b", 3)
    save(folder / "c", 2, 1)
    same = document("diff", folder / "a", folder / "b")
    expect(same["equal"] and same["equal_tensors"] == 17 and same["differences"] == [], same)
    report = document("diff", folder / "a", folder / "c")
    found = {(one["name"], one["kind"], one.get("values"), one.get("first_value")) for one in report["differences"]}
    wanted = {
        ("layers.0.exp_avg", "other_values", 1, 123),
        ("layers.1.step", "only_in_a", None, None),
        ("layers.2.step", "other_values", 1, 0),
        ("layers.3.weight \x1b[31m\n", "only_in_b", None, None),
    }
    expect(found == wanted and not report["equal"], report)
    text = told("diff", folder / "a", folder / "c").stdout
    expect("layers.3.weight \\x1b[31m\\x0a" in text and "1 differ, the first is value 123" in text, text)
    told("diff", folder / "a", folder / "missing", code=1)


def exports(folder: Path) -> None:
    answer = told("to-safetensors", folder / "a", folder / "one")
    expect("left out" in answer.stderr, answer)
    expect([path.name for path in (folder / "one").iterdir()] == ["model.safetensors"], "one file")
    one = tensors_of(folder / "one/model.safetensors")
    expect(len(one) == 16 and one["layers.2.step"] == ("I64", [], (102).to_bytes(8, "little")), one.keys())
    told("to-safetensors", "-q", folder / "b", folder / "other")
    expect(tensors_of(folder / "other/model.safetensors") == one, "other cuts, other tensors")
    told("to-safetensors", "--shard-size", "100K", folder / "a", folder / "many")
    index = json.loads((folder / "many/model.safetensors.index.json").read_text())
    names = sorted(path.name for path in (folder / "many").glob("*.safetensors"))
    count = len(names)
    expect(names == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] and count > 3, names)
    many = {}
    for name in names:
        part = tensors_of(folder / "many" / name)
        expect(sum(len(data) for *_, data in part.values()) <= 100 * 1024 or len(part) == 1, name)
        expect(all(index["weight_map"][tensor] == name for tensor in part), name)
        many |= part
    expect(many == one and index["metadata"]["total_size"] == sum(len(data) for *_, data in one.values()), index)
    expect("exists" in told("to-safetensors", folder / "c", folder / "one", code=1).stderr, "a file that is there")
    expect(tensors_of(folder / "one/model.safetensors") == one, "it was replaced")
    told("to-safetensors", "-qf", folder / "c", folder / "one")
    expect(len(tensors_of(folder / "one/model.safetensors")) == 16, "it was not replaced")
    expect("the checkpoint" in told("to-safetensors", folder / "a", folder / "a", code=1).stderr, "into itself")


def tells_the_newest(folder: Path) -> None:
    runs = folder / "runs"
    runs.mkdir()
    save(runs / "step-1", 2)
    save(runs / "step-2", 2, 1)
    save(runs / "step-3", 3)
    (runs / "step-3" / "00001.strait").unlink()
    report = document("inspect", runs)
    found = {Path(one["path"]).name: (one["whole"], one["newest"]) for one in report["checkpoints"]}
    expect(found == {"step-1": (True, False), "step-2": (True, True), "step-3": (False, False)}, report)
    expect(
        all(one["why"] == "step-3/00001.strait: is missing" for one in report["checkpoints"] if not one["whole"]),
        report,
    )
    text = told("inspect", runs).stdout
    expect(re.search(r"newest +\S+/step-2$", text, re.M) is not None and "NOT WHOLE" in text, text)
    expect("step-2" in told("verify", runs, code=1).stderr, "verify of a folder of checkpoints")
    expect(document("verify", runs / "latest", code=1)["whole"] is False, "the link names the last commit")


def converts(folder: Path) -> None:
    """from-dcp, without torch: what is run, and what is told where it cannot be."""

    def run(python: str | None, *arguments: object) -> subprocess.CompletedProcess[str]:
        path = folder / "path"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        if python is not None:
            (path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} {python} "$@"\n')
            (path / "python3").chmod(0o755)
        command = [STRAIT, "checkpoint", "from-dcp", *map(str, arguments)]
        environment = {"PATH": str(path), "PYTHONPATH": str(folder / "packages")}
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    for place, told_by in (("packages/strait", "json.dumps(sys.argv[1:])"), ("strait", "'the working folder'")):
        (folder / place).mkdir(parents=True)
        (folder / place / "__init__.py").touch()
        text = f"import json, sys\n\n\ndef main():\n    print({told_by})\n    return 7\n"
        (folder / place / "checkpoint.py").write_text(text)
    answer = run("", "--memory", "3M", "-f", "--", "-from", "to here")
    expect(answer.returncode == 7, answer)
    arguments = ["from-dcp", "--memory=3", "--overwrite", "--", "-from", "to here"]
    expect(json.loads(answer.stdout) == arguments, answer)
    expect(json.loads(run("", "a", "b").stdout) == ["from-dcp", "--memory=1024", "--", "a", "b"], "without options")
    answer = run("-I -S", "a", "b")
    expect(answer.returncode == 1 and "cannot import the package strait" in answer.stderr, answer)
    answer = run(None, "a", "b")
    expect(answer.returncode == 1 and "python3: No such file" in answer.stderr, answer)
    expect("packages strait and torch" in answer.stderr, answer)
    for wrong in (["a"], ["a", "b", "c"], ["--memory", "1K", "a", "b"]):
        expect(run("", *wrong).returncode == 2, f"usage: {wrong}")


def cleans(folder: Path) -> None:
    """What a save has left goes once it is old; checkpoints, and what only looks like it, stay."""
    folder.mkdir()
    kept = save(folder / "kept", 1)
    day = 86400
    id_of = "0123456789abcdef" * 2
    old, new = folder / f".step.1.{id_of}.partial", folder / f".step-2.{id_of}.partial"
    others = [folder / f".step.{id_of[:-1]}.partial", folder / f"step.{id_of}.partial", folder / f"..{id_of}.partial"]
    for one in [old, new, *others]:
        one.mkdir()
        (one / "00000.strait").write_bytes(bytes(1000))
        for path in [one / "00000.strait", one]:
            os.utime(path, (time.time() - 2 * day,) * 2)
    os.utime(new / "00000.strait")
    (folder / f".link.{id_of}.partial").symlink_to(old)
    found = {one["name"]: one for one in document("clean", "--dry-run", folder)["leftovers"]}
    expect(set(found) == {old.name, new.name} and old.exists(), found)
    expect(found[old.name]["old"] and not found[new.name]["old"] and found[old.name]["bytes"] == 1000, found)
    text = told("clean", folder).stdout
    expect(f"{old.name}: 1000 bytes: removed" in text and "kept: written to lately" in text, text)
    expect(not old.exists() and new.exists() and kept.exists() and all(one.exists() for one in others), "what is left")
    expect(told("clean", "--older-than", 0, "--quiet", folder).stdout == "" and not new.exists(), "quiet")
    expect(document("clean", folder)["leftovers"] == [], "nothing is left")
    told("verify", kept)
    old.mkdir()
    (old / "mine").write_text("kept")
    told("clean", "--older-than", 0, folder, code=1)
    expect((old / "mine").read_text() == "kept", "a file that no save has written")
    told("clean", folder / "none", code=1)
    told("clean", "--older-than", "soon", folder, code=2)


def main() -> None:
    expect(strait("checkpoint").returncode == 2 and strait("checkpoint", "nothing").returncode == 2, "usage")
    told("verify", code=2)
    told("diff", "a", code=2)
    told("to-safetensors", "--shard-size", "0", "a", "b", code=2)
    with Folder() as folder:
        inspects(folder.path)
        verifies_and_names_damage(folder.path)
        compares(folder.path)
        exports(folder.path)
        tells_the_newest(folder.path)
        converts(folder.path)
        cleans(folder.path / "cleans")
    finish()


main()
