#!/bin/sh
# bench_device.sh PROGRAM SCRATCH: `strait bench transfer --device` on GPUs that are threads, on a few megabytes. SCRATCH
# is overwritten.
set -eu
program=$(realpath "$1")
slice=$(realpath "$(dirname "$0")/data/kv-slice.safetensors")
rm -rf "$2"
mkdir -p "$2"
cd "$2"
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

bench() { # OPTION...: runs it; what it says is in out and err
    "$program" --device --input "$slice" "$@" >out 2>err || fail "exit status $? of: $* $(cat err)"
}

rows() { # COUNT PATTERN: so many lines of the table match, and all of them landed as they were sent
    found=$(grep -cE "$2.* ok\$" out || true)
    [ "$found" -eq "$1" ] || fail "$found rows, not $1, match '$2': $(cat out)"
    ! grep -q WRONG out || fail "wrong pages: $(cat out)"
}

refused() { # STATUS TEXT OPTION...: exits so and says so
    status=$1 text=$2
    shift 2
    code=0
    "$program" --device --input "$slice" "$@" >out 2>err || code=$?
    [ "$code" -eq "$status" ] || fail "exit status $code, not $status: $*"
    grep -q "$text" err || fail "no '$text' from $*: $(cat err)"
}

# ---- All ways and codings, between two GPUs and on one ---------------------------------------------------------------

bench --size 1M,4M --repeats 2 --warmups 1
rows 2 '^[14]M +copy +clock '
rows 2 '^[14]M +copy +events '
for way in peer pinned; do
    for coding in raw top16 tiered auto; do
        rows 2 "^[14]M +$coding +$way "
    done
done
if [ "$BENCH_NCCL" = 1 ]; then
    bench --wires nccl --coding raw,tiered --size 1M,4M --repeats 2
    rows 2 '^[14]M +raw +nccl +nccl '
    rows 2 '^[14]M +tiered +nccl +nccl '
fi
bench --from-gpu 1 --to-gpu 1 --wires pinned --coding tiered --page 4K --size 1M --repeats 3 --warmups 0
rows 1 '^1M +tiered +pinned '

# ---- For machines ----------------------------------------------------------------------------------------------------

bench --wires peer --coding raw,tiered --size 1M,2M --repeats 3 --json --save saved.json
cmp out saved.json || fail "--save wrote something else"
python3 - <<CHECK || fail "JSON: $(cat out)"
import json
found = json.load(open("out"))
assert [device["number"] for device in found["devices"]] == [0, 1] and found["source_whole"]
assert [row["case"] for row in found["rows"]] == 2 * ["copy", "events", "strait", "strait"]
for row in found["rows"]:
    assert row["wrong"] == 0 and len(row["ns"]) == 3 and min(row["ns"]) > 0, row
    assert row["p10_GBps"] <= row["p50_GBps"] <= row["p90_GBps"], row
for row in found["rows"][2::4]:
    assert row["coding"] == "raw" and 0.9 < row["ratio"] <= 1 and row["x_raw"] is None and row["x_copy"] > 0, row
    assert row["stage_ms"]["encode"] > 0 and row["chunks"] >= 1, row
for row in found["rows"][3::4]:
    assert row["coding"] == "tiered" and 1.3 < row["ratio"] < 1.6 and row["x_raw"] > 0, row
    assert abs(row["wire_bytes"] * row["ratio"] / row["bytes"] - 1) < 0.001, row
    assert not row["wires"] or sum(row["wires"].values()) > 0, row
CHECK

# ---- What is wrong is told -------------------------------------------------------------------------------------------

refused 1 'not what was sent' --wires pinned --coding raw --size 1M --repeats 1 --fault flip
grep -qE '^1M +raw +pinned .* WRONG$' out || fail "a wrong page is not shown: $(cat out)"
FAKE_NO_GPU=1 refused 1 'no GPU: no GPU is plugged in' --size 1M
refused 1 'there are GPUs 0 to 1' --to-gpu 2 --size 1M
refused 1 'has 1 to' --size 16
refused 1 'has ended' --size 1M --daemon chunk-bytes=1
refused 1 '/nonexistent/file: cannot be written: No such file' --wires pinned --coding raw --size 1M --save /nonexistent/file
[ ! -s out ] || fail "it measured before it looked at --save: $(cat out)"
echo old >old.json
refused 1 'has ended' --size 1M --daemon chunk-bytes=1 --save old.json
[ "$(cat old.json)" = old ] || fail "a bench that failed took the old figures: $(cat old.json)"
refused 1 'has ended' --size 1M --daemon chunk-bytes=1 --save new.json
[ ! -e new.json ] || fail "a bench that failed left an empty file"
refused 2 'multiple of 16' --page 4097
refused 2 'unknown value' --wires telegraph
refused 2 'exclude each other' --codebook x --calib y

[ "$failed" -eq 0 ] && echo "bench_device: all passed"
exit "$failed"
