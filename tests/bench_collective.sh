#!/bin/sh
# bench_collective.sh PROGRAM LIBSTRAIT_COLL NCCL SCRATCH: `strait bench collective` on GPUs that are memory of the host,
# between an NCCL that moves bytes there and libstrait-coll in front of it. SCRATCH is overwritten.
set -eu
program=$(realpath "$1") coll=$(realpath "$2") nccl=$(realpath "$3")
kv=$(realpath "$(dirname "$0")/data/kv-slice.safetensors") slice=$kv
rm -rf "$4"
mkdir -p "$4"
cd "$4"
failed=0
unset STRAIT_COLL STRAIT_COLL_NCCL STRAIT_COLL_PRINT

fail() {
    echo "FAIL: $*"
    failed=1
}

start() {
    "$program" --library "$coll" --nccl "$nccl" --input "$slice" --repeats 2 --iterations 3 "$@" >out 2>err
}

bench() { # OPTION...: runs it; what it says is in out and err
    start "$@" || fail "exit status $? of: $* $(cat err)"
}

rows() { # COUNT PATTERN: so many lines of the table match, and all results were right
    found=$(grep -cE "$2.* ok " out || true)
    [ "$found" -eq "$1" ] || fail "$found rows, not $1, match '$2': $(cat out)"
    ! grep -q WRONG out || fail "wrong results: $(cat out)"
}

refused() { # STATUS TEXT OPTION...: exits so and says so
    status=$1 text=$2 code=0
    shift 2
    start "$@" || code=$?
    [ "$code" -eq "$status" ] || fail "exit status $code, not $status: $*: $(cat err)"
    grep -q -- "$text" err || fail "no '$text' from $*: $(cat err)"
}

# ---- All operations, types and kinds of data -------------------------------------------------------------------------

bench --size 64K,1M --data tensors,random --types bf16,fp32-bf16
for data in tensors random; do
    for type in bf16 fp32-bf16; do
        for op in all_gather all_to_all reduce_scatter all_reduce sendrecv; do
            rows 1 "^as-is +$data +$type +$op +64K "
            rows 1 "^as-is +$data +$type +$op +1M "
        done
    done
done
bench --size 64K --types fp16,fp32 --data random --ops all_gather,sendrecv
rows 2 '^as-is +random +fp16 '
rows 2 '^as-is +random +fp32 '
bench --size 64K --types fp16 --ops all_to_all --data other # of BF16 tensors, rounded
rows 1 '^as-is +other +fp16 '
FAKE_GPUS=3 bench --size 100000 --types bf16,fp32-bf16 # not divided by three; sums in the order of the ranks
rows 10 '^as-is +other '
MOVING_BACKWARDS=1 FAKE_GPUS=3 bench --size 100000 --types bf16 --ops reduce_scatter --env STRAIT_COLL=raw # in NCCL's own

# Kinds are told from names; each that there is has rows of its own, and no values of others.
python3 - kinds.safetensors <<MAKE
import json, struct, sys
header, data, at = {}, b"", 0
for name, dtype, bits in (("layers.0.input_layernorm.weight", "BF16", 0x3f80), ("layers.0.q_proj.weight.grad", "BF16", 0x3a01),
                          ("layers.0.mlp_input", "BF16", 0x4002), ("q_proj.exp_avg", "F32", 0x3903), ("q_proj.exp_avg_sq", "F32", 0x3804)):
    values = struct.pack("<H", bits) * 4096 if dtype == "BF16" else struct.pack("<I", bits << 16) * 4096
    header[name] = {"dtype": dtype, "shape": [4096], "data_offsets": [at, at + len(values)]}
    data, at = data + values, at + len(values)
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
MAKE
slice=kinds.safetensors
bench --size 64K --types bf16,fp32,fp32-bf16 --ops all_gather,reduce_scatter
for data in weights gradients activations; do
    rows 2 "^as-is +$data +bf16 "
    rows 2 "^as-is +$data +fp32-bf16 "
    rows 0 "^as-is +$data +fp32 "
done
rows 2 '^as-is +moments +fp32 '
rows 2 '^as-is +squares +fp32 '
rows 16 '^as-is '
bench --size 64K --types bf16,fp32 --data moments,tensors --ops all_gather
rows 1 '^as-is +moments +fp32 '
rows 2 '^as-is +tensors '
rows 3 '^as-is '
refused 1 'no values for moments' --size 64K --types bf16 --data moments,weights
refused 1 'no values for type fp32' --size 64K --types bf16,fp32 --data weights
slice=$kv
FAKE_GPUS=3 bench --size 64K --types bf16 --ops all_gather --gpus 2
grep -q '^devices   2 of ' out || fail "--gpus: $(cat out)"
! grep -q '^shared ' out || fail "nothing is shared: $(cat out)"
bench --size 64K --types bf16 --ops all_gather,sendrecv --gpus 1 --ranks 3
grep -q '^devices   1 of ' out || fail "--gpus: $(cat out)"
grep -q '^shared    3 ranks ' out || fail "--ranks: $(cat out)"
rows 2 '^as-is '

# What libstrait-coll did is told, and the environment of the ranks is theirs.
bench --size 64K --types bf16 --ops all_gather,sendrecv --links as-is,shm,socket --env STRAIT_COLL=raw
rows 2 '^as-is .* all_gather .*|^as-is .* sendrecv '
rows 2 '^shm '
rows 2 '^socket '
[ "$(grep -cE '(all_gather|sendrecv) .* ok +raw: ' out)" -eq 6 ] || fail "no way: $(cat out)"

# Calls alone: of a row of one, the median is the slowest.
bench --size 64K --types bf16 --ops all_gather --singles 1 --data tensors,random
[ "$(sed -n '/^single calls/,$p' out | grep -cE '^as-is +(tensors|random) +bf16 +all_gather +0.1 MiB( +[0-9.]+){4} +1 ')" -eq 2 ] ||
    fail "no single calls: $(cat out)"
sed -n '/^single calls/,$p' out | awk '/^as-is/ && ($7 != $8 || $9 != $10) { exit 1 }' || fail "of one call, another is the slowest: $(cat out)"
bench --size 64K --types bf16 --ops all_gather --singles 5 --json
python3 - <<CHECK || fail "single calls as JSON: $(cat out)"
import json
singles = json.load(open("out"))["rows"][0]["singles"]
assert 0 < singles["strait_p50_ns"] <= singles["strait_max_ns"] and 0 < singles["nccl_p50_ns"] <= singles["nccl_max_ns"] and 1 <= singles["slowest"] <= 5, singles
CHECK

# ---- For machines ----------------------------------------------------------------------------------------------------

bench --size 64K,1M --types bf16 --ops all_reduce,reduce_scatter --json --save saved.json
cmp out saved.json || fail "--save wrote something else"
python3 - <<CHECK || fail "JSON: $(cat out)"
import json
found = json.load(open("out"))
assert found["ranks"] == 2 and found["nccl_version"] == 22809 and found["command"][0] == "collective", found
assert [row["operation"] for row in found["rows"]] == 2 * ["reduce_scatter"] + 2 * ["all_reduce"]
for row in found["rows"]:
    assert row["wrong"] == 0 and row["iterations"] == 3 and row["x_min"] <= row["x"] <= row["x_max"], row
    assert row["bytes"] in (65536, 1 << 20) and row["links"] == "as-is" and row["way"].startswith("raw: "), row
    # 3 to begin with, and 3 in each of 2 repeats
    assert row["calls"] == 9 and row["compressed"] == 0 and row["ratio"] is None, row
    for way in ("nccl", "strait"):
        factor = 1 if row["operation"] == "all_reduce" else 0.5
        assert abs(row[way]["busbw_GBps"] / row[way]["algbw_GBps"] - factor) < 1e-9, row
        assert len(row[way]["ns"]) == 2 and all(len(ranks) == 2 and min(ranks) > 0 for ranks in row[way]["ns"]), row
        slow = sorted(max(ranks) for ranks in row[way]["ns"])
        assert abs(row[way]["p50_ns"] - sum(slow) / 2) < 1 and abs(
            row[way]["algbw_GBps"] * row[way]["p50_ns"] / row["bytes"] - 1) < 1e-9, row
CHECK

# ---- What is wrong is told -------------------------------------------------------------------------------------------

refused 1 'not as it has to be' --size 64K --types bf16 --ops all_gather --fault flip
grep -qE 'all_gather .* WRONG ' out || fail "a wrong result is not shown: $(cat out)"
FAKE_GPUS=3 refused 1 'not as it has to be' --size 64K --types bf16 --ops all_reduce --fault flip
# Both libraries count their own operations: one bit of one result, by NCCL or by way of ours, is noticed.
MOVING_SPOIL=12 refused 1 'not as it has to be' --size 64K --types bf16 --ops all_to_all --repeats 3
MOVING_DIE=9 refused 1 'rank 1 ended with exit status 3' --size 64K --types bf16 --ops all_gather
# NCCL's calls of a row: 3 and 3 to begin with, 3 in each of two repeats. The 14th is in the second row.
MOVING_HANG=14 refused 1 'did not end within 3 s' --size 64K,1M --types bf16 --ops all_gather --timeout 3
grep -qE 'rank 1 warms up by NCCL alone: all_gather of other bf16, 1048576 bytes$' err ||
    fail "nobody knows where it hangs: $(cat err)"
rows 1 '^as-is +other +bf16 +all_gather +64K '
[ "$(grep -c " all_gather  " out)" -eq 1 ] || fail "rows that were not measured are shown: $(cat out)"
refused 1 'moving: cannot' --size 64K --types fp16 --data random --ops all_reduce
refused 1 'no values for type fp32' --types fp32
FAKE_NO_GPU=1 refused 1 'no GPU: no GPU is plugged in' --size 64K
FAKE_GPUS=1 refused 1 'need two' --size 64K
refused 1 'there are 2' --gpus 3 --size 64K
refused 1 'cannot open' --size 64K --library /nonexistent/libstrait-coll.so.0
refused 1 'not NCCL' --size 64K --nccl "$coll"
refused 1 '/nonexistent/file: cannot be written: No such file' --size 64K --types bf16 --ops all_gather --save /nonexistent/file
[ ! -s out ] || fail "it measured before it looked at --save: $(cat out)"
refused 2 'unknown value' --ops all_sing
refused 2 'unknown value' --types int8
refused 2 'unknown value' --links telegraph
refused 2 '--size' --size 16
refused 2 'NAME=VALUE' --env STRAIT_COLL
refused 1 'need two, or --ranks' --gpus 1 --size 64K
refused 2 'from 1 to 16' --gpus 0
refused 2 'from 2 to 16' --ranks 1
refused 2 'takes options only' all_gather

[ "$failed" -eq 0 ] && echo "bench_collective: all passed"
exit "$failed"
