#!/bin/sh
# calibrate.sh STRAIT SCRATCH: `strait calibrate` and `strait codebook` from end to end, on files cut from tests/data. SCRATCH is overwritten.
set -eu
strait=$(realpath "$1")
slice=$(realpath "$(dirname "$0")/../data/kv-slice.safetensors")
rm -rf "$2"
mkdir -p "$2"
cd "$2"
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

calibrate() {
    "$strait" calibrate -qf "$@"
}

same() { # FILE OTHER WHAT
    cmp -s "$1" "$2" || fail "$3: $1 and $2 differ"
}

# refused STATUS TEXT ARG...: fails so, says so in one line that names the command, and writes no set
refused() {
    status=$1 text=$2
    shift 2
    code=0
    "$strait" calibrate "$@" >refused.out 2>refused.err || code=$?
    [ "$code" -eq "$status" ] || fail "exit status $code, not $status: calibrate $*"
    grep -q "^strait calibrate: .*$text" refused.err || fail "no '$text' from calibrate $*: $(cat refused.err)"
    [ "$status" -eq 2 ] || [ "$(wc -l <refused.err)" -eq 1 ] || fail "more than one line from calibrate $*"
    [ ! -s refused.out ] || fail "output from calibrate $*"
    [ ! -e no.set ] || fail "a set from calibrate $*"
}

# ---- Files --------------------------------------------------------------------------------------------------------

data_begin=$((8 + $(od -An -tu8 -N8 "$slice")))
tensor_bytes=65536 # of each of the six: layers 0, 5 and 11, k and v

tensor() { # INDEX
    tail -c +$((data_begin + $1 * tensor_bytes + 1)) "$slice" | head -c $tensor_bytes
}

header() { # JSON: at most 64 KiB
    printf '%b' "$(printf '\\0%03o\\0%03o' $((${#1} % 256)) $((${#1} / 256)))\\0\\0\\0\\0\\0\\0"
    printf '%s' "$1"
}

entry() { # NAME BEGIN [DTYPE COUNT]
    printf '"%s":{"dtype":"%s","shape":[%d],"data_offsets":[%d,%d]}' "$1" "${3:-BF16}" "${4:-32768}" "$2" \
        $(($2 + tensor_bytes))
}

# three machines: the second has a class of the first as well, the third weights and what is not BF16
{
    header "{$(entry layers.0.k 0),$(entry layers.0.v 65536)}"
    tensor 0
    tensor 1
} >a.safetensors
{
    header "{$(entry layers.5.k 65536),$(entry layers.0.k 0),$(entry layers.5.v 131072)}"
    tensor 4
    tensor 2
    tensor 3
} >b.safetensors
{
    header "{$(entry layers.5.k_proj.weight 0),$(entry layers.5.v 65536),$(entry layers.1.exp_avg 131072 F32 16384)}"
    tensor 5
    tensor 4
    tensor 0
} >c.safetensors
{
    header "{$(entry layers.1.exp_avg 0 F32 16384)}"
    tensor 0
} >none.safetensors
for _ in $(seq 50); do
    tail -c +$((data_begin + 1)) "$slice"
done >large.raw # several pieces of 16 MiB, for several threads

# ---- One answer, however it was come by ---------------------------------------------------------------------------

calibrate a.safetensors b.safetensors c.safetensors -T 1 -o one.set
for threads in 0 2 7; do
    calibrate a.safetensors b.safetensors c.safetensors -T $threads -o threads.set
    same one.set threads.set "-T $threads"
done
calibrate -o order.set c.safetensors a.safetensors b.safetensors
same one.set order.set "order of files"

calibrate --raw large.raw -T 1 -o large1.set
calibrate --raw large.raw -T 2 -o large2.set
same large1.set large2.set "one large file, -T 2"

for machine in a b c; do
    calibrate $machine.safetensors --partial -o $machine.part
done
for order in "a b c" "a c b" "b a c" "b c a" "c a b" "c b a"; do
    # shellcheck disable=SC2086 # split into three
    set -- $order
    calibrate --merge "$1.part" "$2.part" "$3.part" -o merged.set
    same one.set merged.set "merge of $order"
    calibrate --merge --partial "$1.part" "$2.part" -o pair.part
    calibrate --merge pair.part "$3.part" -o merged.set
    same one.set merged.set "merge of $order in two steps"
done
calibrate a.safetensors b.safetensors c.safetensors --partial -T 2 -o all.part
calibrate --merge --partial c.part b.part a.part -o merged.part
same all.part merged.part "counts"

calibrate --merge a.part b.part -o merged.set 2>notes.txt
[ ! -s notes.txt ] || fail "notes on a merge: $(cat notes.txt)"
cp a.part twin.part
calibrate --merge a.part b.part twin.part -o merged.set 2>notes.txt
grep -q 'twin.part: warning: has the counts of a.part' notes.txt || fail "counts that are added twice: $(cat notes.txt)"

calibrate a.safetensors b.safetensors c.safetensors --global -o global.set
calibrate --merge all.part --global -o merged.set
same global.set merged.set "--global"
! cmp -s one.set global.set || fail "--global changes nothing"

calibrate a.safetensors --class 'layers\.([0-9]+)\.k=other' -o class.set
calibrate a.safetensors -o plain.set
! cmp -s class.set plain.set || fail "--class changes nothing"
calibrate a.safetensors --class '^nothing=v' -o class.set
same class.set plain.set "a rule that never matches"

# ---- Kinds: tensors whose names do not tell what their values are like -----------------------------------------------

# weights, gradients and both moments of two layers, whose exponents lie far apart
python3 - <<'END'
import json, random, struct

random.seed(7)
kinds = [("weight", "BF16", 0.02), ("weight.grad", "BF16", 1e-6), ("exp_avg", "F32", 1e-7), ("exp_avg_sq", "F32", 1e-14)]
for part in ([0], [1], [0, 1]):
    header, values, at = {}, b"", 0
    for layer in part:
        for name, dtype, scale in kinds:
            random.seed(f"{layer}{name}")
            floats = [random.gauss(0, scale) for _ in range(40000)]
            floats = [x * x / scale for x in floats] if name == "exp_avg_sq" else floats
            data = struct.pack(f"<{len(floats)}f", *floats)
            data = data if dtype == "F32" else b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4))
            size = len(data)
            header[f"layers.{layer}.mlp.{name}"] = dict(dtype=dtype, shape=[40000], data_offsets=[at, at + size])
            values, at = values + data, at + size
    head = json.dumps(header).encode()
    with open(f"state{''.join(map(str, part))}.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + values)
END

size() { # NAME [OPTION]...: of state01, encoded
    name=$1
    shift
    "$strait" encode -qf state01.safetensors "$name" "$@"
    "$strait" decode -qf "$name" back.safetensors
    same state01.safetensors back.safetensors "encode $*"
    stat -c %s "$name"
}

calibrate state01.safetensors -o state.set
"$strait" inspect state.set >report.txt
for kind in 0 1 2 3; do
    grep -q "kind $kind " report.txt || fail "no kind $kind: $(cat report.txt)"
done
! grep -q "kind 4" report.txt || fail "kinds of different layers are not joined"
tables=$(($(wc -l <report.txt) - 2))
none=$(size none.strait) base=$(size base.strait --mode base) own=$(size own.strait --codebook state.set)
[ "$((own - 256 * tables))" -le "$none" ] && [ "$own" -lt "$base" ] || fail "with its own set $own bytes, without $none, in base $base"
split=$(size split.strait --codebook state.set --mode split)
# auto is smaller by the signs that no second moment has: mode parts takes them away.
[ $((split * 100)) -le $((own * 102)) ] || fail "in mode split $split bytes, in auto $own"
wrong=$(size wrong.strait --codebook plain.set)
[ $((wrong * 100)) -le $((base * 101)) ] || fail "with a set of another kind $wrong bytes, in base $base"

for layer in 0 1; do
    calibrate state$layer.safetensors --partial -o state$layer.part
done
calibrate --merge state1.part state0.part -o merged.set
same state.set merged.set "kinds of two files"
calibrate --merge --partial state1.part state0.part -o merged.part
calibrate --merge merged.part -o merged.set
same state.set merged.set "kinds of two files in two steps"
# tensors that differ in a number alone, which is no layer
python3 - <<'END'
import json, random, struct

header, values = {}, b""
for i in range(6):
    random.seed(i)
    data = struct.pack("<30000f", *(random.gauss(0, 0.03 / 4**i) for _ in range(30000)))
    data = b"".join(data[k + 2 : k + 4] for k in range(0, len(data), 4))
    header[f"conv_{i}.weight"] = dict(dtype="BF16", shape=[30000], data_offsets=[60000 * i, 60000 * i + 60000])
    values += data
head = json.dumps(header).encode()
with open("conv.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(head)) + head + values)
END
calibrate conv.safetensors -o conv.set
"$strait" encode -qf conv.safetensors none.strait
"$strait" encode -qf conv.safetensors --codebook conv.set own.strait
tables=$(($("$strait" inspect conv.set | wc -l) - 2))
[ $(($(stat -c %s own.strait) - 256 * tables)) -le "$(stat -c %s none.strait)" ] || fail "a convolutional model's own set"
"$strait" encode -f conv.safetensors --codebook conv.set own.strait 2>report.txt
grep -q warning report.txt && fail "a convolutional model's own set does not fit: $(cat report.txt)"

# moments that an optimizer calls m and v, beside cached values of that name: no class of theirs is of FP32
python3 - <<'END'
import json, random, struct

header, values = {}, b""
for layer in range(2):
    for name, dtype, scale in (("weight", "BF16", 0.02), ("v", "BF16", 1), ("weight.m", "F32", 1e-6), ("weight.v", "F32", 1e-12),
                               ("weight.k", "F16", 2**-10)):
        random.seed(f"{layer}{name}")
        floats = [random.gauss(0, 1) * scale for _ in range(20000)]
        floats = [x * x / scale for x in floats] if name == "weight.v" else floats
        data = struct.pack("<20000e" if dtype == "F16" else "<20000f", *floats)
        data = b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4)) if dtype == "BF16" else data
        header[f"layers.{layer}.{name}"] = dict(dtype=dtype, shape=[20000], data_offsets=[len(values), len(values) + len(data)])
        values += data
head = json.dumps(header).encode()
with open("moments.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(head)) + head + values)
END
"$strait" calibrate -f moments.safetensors -o moments.set >report.txt 2>notes.txt || fail "moments called m and v"
[ ! -s notes.txt ] || fail "moments called m and v: $(cat notes.txt)"
"$strait" inspect moments.set >report.txt
grep -q ' v 0 ' report.txt && grep -q 'kind 3 ' report.txt || fail "kinds of moments called m and v: $(cat report.txt)"
"$strait" encode -f moments.safetensors --codebook moments.set own.strait 2>report.txt
grep -q warning report.txt && fail "moments called m and v do not fit their own set: $(cat report.txt)"
"$strait" encode -qf moments.safetensors none.strait
tables=$(($("$strait" inspect moments.set | wc -l) - 2))
[ $(($(stat -c %s own.strait) - 256 * tables)) -le $(($(stat -c %s none.strait) * 1005 / 1000)) ] ||
    fail "moments called m and v by their own set: $(stat -c %s own.strait), without $(stat -c %s none.strait)"

calibrate state1.safetensors state0.safetensors -T 3 -o threads.set
same state.set threads.set "kinds of two files at once"
calibrate state01.safetensors --global -o global.set
[ "$("$strait" inspect global.set | wc -l)" -eq 3 ] || fail "kinds in a set of --global"

# ---- strait codebook ------------------------------------------------------------------------------------------------

told() { # FILTER ARG...: what the JSON of `strait codebook ARG...` has to be, as Python
    filter=$1
    shift
    "$strait" codebook "$@" --json >told.json || fail "codebook $*"
    python3 -c "import json; d = json.load(open('told.json')); rows = d['classes']; assert $filter, d" 2>told.err ||
        fail "codebook $*: not $filter: $(tail -c 600 told.err)"
}

told 'len(rows) == 7 and all(r["changed_codes"] == 0 and r["in_a"] and r["in_b"] for r in rows[:4])' diff state.set state.set
told 'all(r["a_by_a_bits"] == r["a_by_b_bits"] > 1 for r in rows)' diff state.set state.set
told 'rows[0]["fallback"] and d["total"]["a_by_a_bits"] == d["total"]["b_by_b_bits"]' diff state.set state.set
# counts make the set that they were merged to
told 'd["a"]["codebook_id"] == d["b"]["codebook_id"]' diff state.set merged.part
# K and V beside weights: neither has a table for the other's values, which cost more by what it has
told 'all(not r["in_b"] and r["b_by_b_bits"] is None for r in rows if r["role"] in ("k", "v"))' diff plain.set state.set
told 'all(not r["in_a"] and r["b_by_a_bits"] > 1.5 * r["b_by_b_bits"] for r in rows if r.get("kind", 0) > 0)' diff plain.set state.set
told 'd["total"]["a_by_a_bits"] < d["total"]["a_by_b_bits"] and d["total"]["b_by_b_bits"] < d["total"]["b_by_a_bits"]' \
    diff plain.set state.set
"$strait" codebook diff plain.set state.set | grep -q '^kind 3  *([0-9]*)  *[0-9]* ' || fail "codebook diff, for people"

told 'd["codebook_fits"] and all(r["fits"] for r in rows) and sum(r["values"] for r in rows) == 320000' \
    expect state.set state01.safetensors
told 'all(0.97 < r["bits"] / r["expected_bits"] < 1.03 for r in rows)' expect state.set state01.safetensors
told 'all(abs(r["bits"] - r["own_bits"]) < 1e-9 for r in rows)' expect state.set state01.safetensors
told 'not d["codebook_fits"] and d["total"]["bits"] > 1.5 * d["total"]["own_bits"]' expect plain.set state01.safetensors
told 'rows[0]["role"] == "k" and rows[0]["layer"] == 0 and d["codebook_fits"]' expect one.set a.safetensors
told 'd["total"]["values"] == 160000' expect state.set state01.safetensors --dtype bf16
"$strait" codebook expect plain.set state01.safetensors | grep -q '^warning: .* take over 5% more than plain.set' ||
    fail "codebook expect does not warn"
"$strait" codebook expect state.set state01.safetensors | grep -q warning && fail "codebook expect warns of a set that fits"
for wrong in "diff one.set" "diff one.set one.set one.set" "expect one.set" "other one.set" "" "expect --dtype fp8 one.set a.safetensors"; do
    code=0
    # shellcheck disable=SC2086 # split into words
    "$strait" codebook $wrong >/dev/null 2>&1 || code=$?
    [ $code -eq 2 ] || fail "exit status $code: codebook $wrong"
done
for wrong in "diff one.set a.safetensors" "diff missing one.set" "expect a.safetensors a.safetensors" "expect one.set one.set"; do
    code=0
    # shellcheck disable=SC2086
    "$strait" codebook $wrong >/dev/null 2>refused.err || code=$?
    { [ $code -eq 1 ] && grep -q "^strait codebook ${wrong%% *}: " refused.err; } || fail "exit status $code: codebook $wrong"
done

# ---- Output -------------------------------------------------------------------------------------------------------

calibrate a.safetensors b.safetensors c.safetensors -o - >stdout.set
same one.set stdout.set "-o -"
"$strait" calibrate a.safetensors -o - >stdout.set 2>report.txt
same plain.set stdout.set "-o - with a report"
grep -q '^total ' report.txt || fail "no report on stderr with -o -"

"$strait" calibrate a.safetensors b.safetensors c.safetensors -f -o one.set >report.txt 2>notes.txt
[ "$(wc -l <report.txt)" -eq 9 ] || fail "not two head lines, five classes, a kind and a total"
for row in 'other 5 *32768' 'kind 0 *49152' 'k 0 *65536' 'k 5 *32768' 'v 0 *32768' 'v 5 *65536' \
    'total *245760'; do
    grep -q "^$row " report.txt || fail "no row '$row'"
done
[ ! -s notes.txt ] || fail "notes: $(cat notes.txt)"
"$strait" calibrate a.safetensors c.safetensors -f --dtype bf16 -o bf16.set >report.txt 2>notes.txt
[ "$(cat notes.txt)" = "strait calibrate: skipped 1 tensor that is not BF16" ] || fail "notes: $(cat notes.txt)"
grep -q '^kind 0 *32768 ' report.txt || fail "FP32 is counted with --dtype bf16"
"$strait" calibrate --json a.safetensors --force -o plain.set | grep -q '"codebook_id":.*"[0-9a-f]\{32\}"' || fail "no JSON"
[ -z "$(calibrate a.safetensors c.safetensors -o plain.set 2>&1)" ] || fail "-q is not quiet"

umask 027
echo old >mode.set
ln -s mode.set link.set
calibrate a.safetensors -o link.set
[ -L link.set ] || fail "a link was replaced by what it points to"
[ "$(stat -c %a mode.set)" = 640 ] || fail "the umask was not obeyed"
mkfifo pipe
cat pipe >pipe.set &
calibrate a.safetensors -o pipe
wait $!
same mode.set pipe.set "output to a pipe"
[ -p pipe ] || fail "a pipe was replaced"

# ---- Refusals -----------------------------------------------------------------------------------------------------

refused 2 "no input files" -o no.set
refused 2 "no output" a.safetensors
refused 2 "unrecognized option" --nonsense a.safetensors -o no.set
refused 2 "requires an argument" a.safetensors -o
refused 2 "-T takes" -T x a.safetensors -o no.set
refused 2 "-T takes" -T -1 a.safetensors -o no.set
refused 2 "regular expression" --class '(=k' a.safetensors -o no.set
refused 2 "the role is not" --class 'a=b' a.safetensors -o no.set
refused 2 "no --class, no --raw" --merge --raw a.part -o no.set
refused 2 "no --class, no --raw" --merge --class a=k a.part -o no.set
refused 2 "no tensor names" --raw --class a=k large.raw -o no.set
refused 2 "keeps all classes" --partial --global a.safetensors -o no.set

: >empty
mkdir folder
head -c 1000 a.safetensors >short.safetensors
head -c 40 a.safetensors >shorter.safetensors
printf x >odd.raw
head -c $(($(wc -c <a.part) - 1)) a.part >short.part
head -c 40 one.set >short.set
printf '\nnonsense' >>b.safetensors # gaps and trailing bytes are allowed
calibrate b.safetensors -o gap.set || fail "trailing bytes"

refused 1 "missing: No such file" a.safetensors missing -o no.set
refused 1 "folder: not a regular file" a.safetensors folder -o no.set
refused 1 "pipe: not a regular file" pipe -o no.set
refused 1 "empty: not a safetensors file" empty -o no.set
refused 1 "large.raw: not a safetensors file; --raw" large.raw -o no.set
refused 1 "shorter.safetensors: bad safetensors file: ends inside the header" a.safetensors shorter.safetensors -o no.set
refused 1 "short.safetensors: .*beyond the end of the file" a.safetensors short.safetensors -o no.set
refused 1 "odd.raw: an odd number" --raw odd.raw -o no.set
refused 1 "no values in 1 file that are BF16" -q --dtype bf16 none.safetensors -o no.set
refused 1 "no values in 2 files that are BF16" --raw empty empty -o no.set
refused 1 "a.part: .*--merge" a.part -o no.set
refused 1 "one.set: a codebook set" --merge a.part one.set -o no.set
refused 1 "a.safetensors: not a partial file" --merge a.part a.safetensors -o no.set
refused 1 "empty: not a partial file" --merge empty -o no.set
refused 1 "short.part: a damaged" --merge a.part short.part -o no.set
refused 1 "short.set: a damaged" --merge short.set -o no.set
refused 1 "nowhere/x.set: .*No such file" a.safetensors -o nowhere/x.set
refused 1 "folder: .*directory" a.safetensors -o folder
if [ -c /dev/full ]; then
    refused 1 "/dev/full: No space" a.safetensors -o /dev/full
    ! "$strait" calibrate a.safetensors -o full.set >/dev/full 2>&1 || fail "a report that was not printed"
    [ -c /dev/full ] || fail "a device was replaced"
fi

# ---- Other types ---

calibrate --dtype fp32 c.safetensors -o fp32.set || fail "FP32 tensors"
calibrate --dtype bf16 --dtype fp32 -f c.safetensors -o both.set || fail "tensors of two types"
calibrate none.safetensors -o found.set || fail "a file whose tensors are FP32, without --dtype"
calibrate --dtype fp32 none.safetensors -o said.set
same found.set said.set "a type that the file says"
cmp -s fp32.set both.set && fail "BF16 tensors were not counted"
calibrate --raw --dtype fp32 large.raw -o raw32.set || fail "plain FP32 values"
refused 1 "no values in 1 file that are of --dtype" -q --dtype fp16 a.safetensors -o no.set
refused 1 "odd.raw: its size" --raw --dtype fp32 odd.raw -o no.set
refused 2 "one --dtype" --raw --dtype fp32 --dtype bf16 large.raw -o no.set
refused 2 "no --dtype" --merge --dtype fp32 a.part -o no.set
refused 2 "dtype" --dtype fp8 a.safetensors -o no.set

# ---- Nothing half done --------------------------------------------------------------------------------------------

cp one.set kept.set
refused 1 "kept.set: exists; -f" a.safetensors -o kept.set
same one.set kept.set "the set that was not to be replaced"
ln -s nowhere.set dangling.set
refused 1 "dangling.set: exists; -f" a.safetensors -o dangling.set
! calibrate short.safetensors -o kept.set 2>refused.err || fail "a bad file was taken"
same one.set kept.set "the set that was there before a failure"
left=$(find . -name '*.set.*' -o -name '*.part.*')
[ -z "$left" ] || fail "left behind: $left"

[ $failed -eq 0 ] && echo "calibrate: all passed"
exit $failed
