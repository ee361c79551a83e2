#!/bin/sh
# examples.sh STRAITD PULL PUSH: the examples under one daemon as their first lines tell to run them, and once more.
set -eu
straitd=$(realpath "$1")
pull=$(realpath "$2")
push=$(realpath "$3")
scratch=$(mktemp -d /tmp/strait-test-XXXXXX) # a daemon's socket needs a short path
pids=""
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    for pid in $pids; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf "$scratch"
}
trap clean_up EXIT
cd "$scratch"
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

"$straitd" --socket="$scratch/s" --listen=127.0.0.1:0 --metrics= --arena-bytes=8M 2>log &
daemon=$!
pids=$daemon

# pair PROGRAM FIRST SECOND: both sides, the one that waits for the other's blob begun last.
pair() {
    status=0
    "$1" "$2" blob "$scratch/s" >first 2>&1 &
    first=$!
    pids="$daemon $first"
    "$1" "$3" blob "$scratch/s" >second 2>&1 || status=$?
    [ $status -eq 0 ] || fail "$1 $3 ends with $status: $(cat second)"
    wait $first || fail "$1 $2: $(cat first)"
    pids=$daemon
    [ ! -e blob ] || fail "$1 left its blob"
}

for round in 1 2; do
    pair "$pull" source sink
    grep -q 'every value is in its place' second || fail "round $round, pull: $(cat second)"
    pair "$push" sink source
done
"$pull" neither blob "$scratch/s" 2>err && fail "a side that there is not"
grep -q '^usage:' err || fail "bad usage: $(cat err)"
kill "$daemon"
wait "$daemon" || fail "straitd: $(cat log)"
exit $failed
