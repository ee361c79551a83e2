#!/bin/sh
# bench_transfer.sh STRAIT SCRATCH: `strait bench transfer` on a few megabytes. BENCH_PATHS: the paths that this build has.
# SCRATCH is overwritten.
set -eu
strait=$(realpath "$1")
slice=$(realpath "$(dirname "$0")/data/kv-slice.safetensors")
paths=${BENCH_PATHS:-local,shm}
rm -rf "$2"
mkdir -p "$2"
cd "$2"
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

bench() { # OPTION...: runs it; what it says is in out and err
    "$strait" bench transfer --input "$slice" "$@" >out 2>err || fail "exit status $? of: $* $(cat err)"
}

# rows COUNT PATTERN: so many lines of the table match, and all of them landed as they were sent
rows() {
    found=$(grep -cE "$2.* ok\$" out || true)
    [ "$found" -eq "$1" ] || fail "$found rows, not $1, match '$2': $(cat out)"
    ! grep -q WRONG out || fail "wrong pages: $(cat out)"
}

# refused STATUS TEXT OPTION...: exits so and says so
refused() {
    status=$1 text=$2
    shift 2
    code=0
    "$strait" bench transfer --input "$slice" "$@" >out 2>err || code=$?
    [ "$code" -eq "$status" ] || fail "exit status $code, not $status: $*"
    grep -q "$text" err || fail "no '$text' from $*: $(cat err)"
}

each_path() { # LOCAL OTHERS: so many rows of transfers over local, and over each other path
    for path in $(echo "$paths" | tr , ' '); do
        [ "$path" = local ] && coded=$1 || coded=$2
        rows "$coded" "^strait +$path "
    done
}

# ---- Every path, coding and direction -------------------------------------------------------------------------------

bench --path "$paths" --page 16K --pages 64 --coding raw,top16,tiered,auto --direction pull,push --repeats 1 --samples 2 \
    --no-rivals
each_path 2 8

# ---- Sizes, requests at once, and memcpy ----------------------------------------------------------------------------

bench --path "$paths" --page 4K --page 256K --pages 1 --pages 4 --requests 3 --whole --repeats 2 --samples 1 --no-rivals
each_path 4 4
rows 4 '^strait whole +shm '
bench --path local --pages 16 --repeats 2 --regions 0
rows 1 '^memcpy '
rows 1 '^strait .* memcpy '

# ---- Layer by layer, with a payload that comes late -----------------------------------------------------------------

bench --path "$paths" --page 16K --pages 16 --layers 4 --every 5 --aux 1000 --aux-after 10 --repeats 2
for path in $(echo "$paths" | tr , ' '); do
    rows 1 "^strait layers +$path "
    rows 1 "^strait alone +$path "
done

# ---- For machines ---------------------------------------------------------------------------------------------------

bench --path shm --pages 16 --coding tiered --repeats 3 --samples 2 --no-rivals --regions 0 --json
python3 - <<CHECK || fail "JSON: $(cat out)"
import json
[row] = json.load(open("out"))["rows"]
assert row["wrong_pages"] == 0 and len(row["ns"]) == 6 and min(row["ns"]) > 0
assert row["transport"] == "shm" and 1.3 < row["ratio"] < 1.6, row["ratio"]
CHECK
bench --path shm --pages 16 --coding tiered --repeats 1 --no-rivals --noise --json
python3 - <<CHECK || fail "JSON of noise: $(cat out)"
import json
[row] = json.load(open("out"))["rows"]
assert row["wrong_pages"] == 0 and 0.98 < row["ratio"] <= 1, row["ratio"]
CHECK

# ---- What is wrong is told ------------------------------------------------------------------------------------------

refused 2 'unknown value' --path nowhere
refused 2 'multiple of 16' --page 4097
refused 2 'two rates' --change 1
refused 1 'has ended' --path local --pages 1 --daemon chunk-bytes=1
STRAITD=/nonexistent refused 1 'has ended' --path local --pages 1
refused 1 'refused a pool' --path local --page 1M --pages 4 --daemon pool-bytes=1M

[ "$failed" -eq 0 ] && echo "bench_transfer: all passed"
exit "$failed"
