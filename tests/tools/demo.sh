#!/bin/sh
# demo.sh STRAIT SCRATCH: `strait demo` and `strait status` from end to end, and that they leave nothing behind.
# $STRAITD is the daemon, $STRAIT_WAITER the program demo_waiter. SCRATCH is not used: see below.
set -eu
strait=$(realpath "$1")
straitd=$(realpath "${STRAITD:-$(dirname "$strait")/../daemon/straitd}")
export STRAITD="$straitd"
# A daemon's socket needs a short path, and so does a demo's folder: not below SCRATCH.
scratch=$(mktemp -d /tmp/strait-test-XXXXXX)
export TMPDIR="$scratch/tmp"
mkdir "$TMPDIR"
daemon=0 other=0 waiter=0
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    for pid in $daemon $other $waiter; do
        [ "$pid" -eq 0 ] || kill -KILL "$pid" 2>/dev/null || true
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

# Daemons of demos, told by their sockets; one that has ended, but that nobody has waited for, has no command line.
printf '%s/' "$TMPDIR" >pattern
daemons() {
    grep -lsF -f pattern /proc/[0-9]*/cmdline || true
}

nothing_left() { # WHAT
    [ -z "$(ls -A "$TMPDIR")" ] || fail "$1 left files: $(find "$TMPDIR")"
    [ -z "$(daemons)" ] || fail "$1 left daemons: $(daemons)"
}

# status_is WANTED COMMAND ARG...: exits so; output and errors in out and err
status_is() {
    wanted=$1 code=0
    shift
    "$@" >out 2>err || code=$?
    [ "$code" -eq "$wanted" ] || fail "exit status $code, not $wanted: $*: $(cat out err)"
}

says() { # FILE TEXT WHAT
    grep -q "$2" "$1" || fail "$3: no '$2' in: $(cat "$1")"
}

# ---- The demo -----------------------------------------------------------------------------------------------------

# All at once, as they mostly wait: for their daemons and for each other. The node's options are not for the demo.
run() { # NAME COMMAND ARG...: output, errors and status in NAME.out, NAME.err and NAME.code
    name=$1 code=0
    shift
    "$@" >"$name.out" 2>"$name.err" || code=$?
    echo $code >"$name.code"
}
ended() { # NAME STATUS
    [ "$(cat "$1.code")" -eq "$2" ] || fail "exit status $(cat "$1.code") of $1, not $2: $(cat "$1.out" "$1.err")"
}
STRAITD_CODEC=nonsense STRAITD_CONFIG=/nowhere run text "$strait" demo &
runs=$!
run json "$strait" demo --json &
runs="$runs $!"
run flip "$strait" demo --fault flip &
runs="$runs $!"
run flip_json "$strait" demo --fault flip --json &
runs="$runs $!"
run odd "$strait" demo --json --sink-layout tokens=15,packed,cross-layer --dtype fp32 &
runs="$runs $!"
run heads "$strait" demo --json --sink-layout hnd,tokens=64 --dtype fp8_e5m2 --fault flip &
runs="$runs $!"
run half "$strait" demo --sink-layout hnd,tokens=128,packed --dtype fp16 &
runs="$runs $!"
run eighth "$strait" demo --sink-layout cross-layer --dtype fp8_e4m3 --fault flip &
runs="$runs $!"
run bytes "$strait" demo --sink-layout hnd,tokens=64 --dtype bytes &
runs="$runs $!"
run full sh -c "'$strait' demo >/dev/full" &
runs="$runs $!"
for run in $runs; do wait "$run"; done
ended text 0
ended json 0
ended flip 1
ended flip_json 1
ended odd 0
ended heads 1
ended half 0
ended eighth 1
ended bytes 0
ended full 1
nothing_left "the demos"
says text.out '^verified: true$' "the demo"
says text.out '^local  *copy ' "the demo"
says flip.out '^verified: false$' "a flipped bit"
says flip.out '^WRONG: .*tiered: layer 5 v, page [0-9]' "a flipped bit"
says half.out '^hnd,tokens=128,packed, of 262144 bytes: they are rearranged' "another layout"
says half.out '^local  *copy .*  129 of 129 pages$' "another layout"
says half.out '^verified: true$' "another layout"
says bytes.out '^network  *tcp  *raw ' "INT8"
says bytes.out '^verified: true$' "INT8"
says eighth.out '^nhd,tokens=16,cross-layer, of 8192 bytes' "pages of all layers together"
says eighth.out '^WRONG: network, base: layer 5 v, page [0-9]* (page [0-9]* of the source)' "a flipped bit"
python3 - odd.out heads.out <<'PYTHON' || fail "the JSON of other layouts: $(cat odd.out heads.out)"
import json, sys
odd, heads = (json.load(open(path)) for path in sys.argv[1:])
assert odd["verified"] is True and odd["dtype"] == "fp32" and odd["bad_pages"] == [] and odd["errors"] == []
assert (odd["source_layout"], odd["sink_layout"]) == ("nhd,tokens=16", "nhd,tokens=15,packed,cross-layer")
assert odd["page_bytes"] == 15 * 4 * 128 * 4 * 2 and odd["pages"] == 3 * -(-341 * 16 // 15)
assert heads["verified"] is False and heads["dtype"] == "fp8_e5m2" and heads["sink_layout"] == "hnd,tokens=64"
assert heads["pages"] == 6 * -(-341 * 16 // 64)
(bad,) = heads["bad_pages"]
assert bad["coding"] == "base" and bad["source_page"] is None and bad["source_hash"] != bad["landed_hash"]
bars = {"raw": (0.95, 1), "base": (1.15, 1.4), "split": (1.15, 1.4), "none": (0, 0)}
for demo in odd, heads:
    values = 6 * 341 * 16 * 4 * 128
    assert {row["path"] for row in demo["transfers"]} == {"network", "shm", "local"}
    for row in demo["transfers"]:
        low, high = bars[row["coding"]]
        assert low <= (row["ratio"] or 0) <= high and row["raw_bytes"] == values * (4 if demo is odd else 1), row
        assert (row["pages_right"] == demo["pages"]) == row["verified"], row
PYTHON
python3 - json.out <<'PYTHON' || fail "the demo's JSON: $(cat json.out)"
import json, sys
demo = json.load(open(sys.argv[1]))
assert demo["verified"] is True and demo["fault"] is None and demo["bad_pages"] == [] and demo["errors"] == []
assert demo["dtype"] == "bf16" and demo["source_layout"] == demo["sink_layout"] == "nhd,tokens=16"
rows = {(row["path"], row["coding"]): row for row in demo["transfers"]}
assert {("shm", "raw"), ("shm", "top16"), ("shm", "tiered"), ("local", "none")} <= rows.keys(), rows.keys()
for (path, coding), row in rows.items():
    assert row["verified"] is True and row["pages_right"] == demo["pages"] and row["seconds"] > 0
    assert row["raw_bytes"] == demo["pages"] * demo["page_bytes"]
    assert row["source_hash"] == row["landed_hash"] and len(row["source_hash"]) == 32
    assert row["transport"] == {"network": "tcp", "shm": "shm", "local": "copy"}[path], row
    low, high = {"raw": (0.99, 1.0), "top16": (1.3, 1.34), "tiered": (1.4, 1.6), "none": (0, 0)}[coding]
    assert low <= (row["ratio"] or 0) <= high, row
    assert (row["wire_bytes"] == 0) == (coding == "none"), row
PYTHON
python3 - flip_json.out <<'PYTHON' || fail "the JSON of a flipped bit: $(cat flip_json.out)"
import json, sys
demo = json.load(open(sys.argv[1]))
(bad,) = demo["bad_pages"]
assert demo["verified"] is False and demo["fault"] == "flip" and demo["errors"] == []
assert bad["source_hash"] != bad["landed_hash"] and bad["coding"] == "tiered" and bad["page"] >= 0
assert [row["verified"] for row in demo["transfers"]].count(False) == 1
assert all((row["pages_right"] == demo["pages"]) == row["verified"] for row in demo["transfers"])
PYTHON

# ---- Ends of the demo ---------------------------------------------------------------------------------------------

for delay in 0.1 0.4 0.9; do
    "$strait" demo >out 2>err &
    demo=$!
    sleep $delay
    code=0
    kill -TERM $demo 2>/dev/null || true
    wait $demo || code=$?
    [ $code -eq 143 ] || [ $code -eq 0 ] || fail "exit status $code after a signal: $(cat out err)"
    nothing_left "a demo that was told to end after $delay s"
done

"$strait" demo >out 2>err &
demo=$!
sleep 0.6
kill -KILL $demo 2>/dev/null || true
wait $demo || true
for wait in $(seq 100); do
    [ -n "$(daemons)" ] || break
    sleep 0.2
done
[ -z "$(daemons)" ] || fail "a killed demo left daemons: $(daemons)"
rm -rf "${TMPDIR:?}"/*

printf '#!/bin/sh\necho "straitd: cannot begin, and this is why" >&2\nexit 3\n' >broken
chmod +x broken
STRAITD="$scratch/broken" status_is 1 "$strait" demo
says err 'ended with status 3' "a daemon that does not start"
says err 'cannot begin, and this is why' "a daemon that does not start"
says out '^verified: false$' "a daemon that does not start"
nothing_left "a demo without daemons"
STRAITD="$scratch/none" status_is 1 "$strait" demo --json
says out '"verified":.*false' "no daemon"
says out 'names no program' "no daemon"
status_is 2 "$strait" demo --fault other
status_is 2 "$strait" demo argument
status_is 2 "$strait" demo --dtype int8
says err "'int8' is none of bf16, fp16.*, bytes (INT8, FP4)" "an unknown type"
for layout in '' nhd, tokens=0 tokens=1025 tokens= tokens=64x sideways; do
    status_is 2 "$strait" demo --sink-layout "$layout"
    says err 'is none of nhd, hnd, packed, cross-layer, tokens=1 to tokens=1024' "the layout '$layout'"
done
for layout in nhd,hnd packed,packed hnd,tokens=8,tokens=9; do
    status_is 2 "$strait" demo --sink-layout "$layout"
    says err 'repeats or contradicts a word before it' "the layout '$layout'"
done

# ---- Status -------------------------------------------------------------------------------------------------------

socket=$scratch/d.sock
status_is 1 "$strait" status --socket "$socket"
says err 'no such socket' "status without a daemon"

await_line() { # FILE TEXT
    for wait in $(seq 200); do
        grep -qs "$2" "$1" && return
        sleep 0.1
    done
    fail "no '$2' in $1: $(cat "$1")"
}

run_daemon() { # SOCKET LOG CLIENTS; its process in $!
    "$straitd" --socket "$1" --listen 127.0.0.1:0 --metrics "" --arena-bytes 16M --chunk-bytes 4M --drain-timeout 200ms \
        --clients "$3" >"$2" 2>&1 &
}

run_daemon "$socket" log 256
daemon=$!
await_line log msg=ready
status_is 0 "$strait" status --socket "$socket"
says out '^straitd [0-9]' "status"
says out 'address  *127.0.0.1:[1-9]' "status"
says out '0 of 4 receive slots' "status"
says out '^no peers' "status"
STRAIT_SOCKET=$socket status_is 0 "$strait" status --json
python3 -c 'import json; s = json.load(open("out")); assert s["gauges"]["slots"] == 4 and s["peers"] == []' ||
    fail "the JSON of status: $(cat out)"
for _ in $(seq 200); do
    [ "$(grep -c 'msg="client left"' log)" -lt 2 ] || break
    sleep 0.1
done
[ "$(grep -c 'msg="client left"' log)" -eq 2 ] || fail "each status is one client: $(cat log)"

# A peer that is reached, and one that is not any more, with the reason.
waiter=${STRAIT_WAITER:-$(dirname "$strait")/../tests/tools/demo_waiter}
run_daemon "$scratch/other.sock" other.log 1
other=$!
await_line other.log msg=ready
mkfifo orders
"$waiter" "$scratch/other.sock" "$socket" <orders >waiter.log 2>&1 &
waiter=$!
exec 9>orders
await_line waiter.log ready
echo >&9
await_line waiter.log waiting
status_is 0 "$strait" status --socket "$socket"
says out '127.0.0.1:[0-9]*  *up, dialled, shm, round trip' "status of a peer"
says out '1 expected' "status with a peer"
status_is 1 "$strait" status --socket "$scratch/other.sock"
says err 'too many clients (option clients=1)' "status of a daemon that has as many clients as it takes"
kill -KILL $other # one that drains refuses what waits there, and nobody dials it again
wait $other || true
other=0
await_refusal() {
    for wait in $(seq 200); do
        "$strait" status --socket "$socket" >out 2>err
        grep -q 'refused' out && return
        sleep 0.1
    done
}
await_refusal
# It is dialled again while an expectation waits for it.
says out '127.0.0.1:[0-9]*  *\(not connected\|dialling\), dialled: Connection refused' "status of a peer that is gone"
exec 9>&-
wait $waiter || fail "the waiter: $(cat waiter.log)"
waiter=0

kill -STOP $daemon
status_is 1 timeout 60 "$strait" status --socket "$socket"
says err 'no answer within 2 seconds' "status of a stopped daemon"
kill -CONT $daemon
if [ "$(id -u)" -ne 0 ]; then
    chmod 0 "$socket"
    status_is 1 "$strait" status --socket "$socket"
    says err 'no permission' "status without permission"
    chmod 660 "$socket"
fi
kill -TERM $daemon
wait $daemon || fail "straitd after SIGTERM: $(cat log)"
daemon=0
[ ! -e "$socket" ] || fail "straitd left its socket"

python3 - "$socket" <<'PYTHON'
import socket, sys
socket.socket(socket.AF_UNIX).bind(sys.argv[1])
PYTHON
status_is 1 "$strait" status --socket "$socket"
says err 'nobody listens' "status at an old socket"
status_is 2 "$strait" status argument

[ $failed -eq 0 ] && echo "demo.sh: all passed"
exit $failed
