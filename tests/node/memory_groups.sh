#!/usr/bin/env bash
# memory_groups.sh STRAITD WORKER PULL: daemon and workers in control groups of their own, with limits on memory. A pool is
# charged to its worker, an arena to its daemon, and what does not fit is refused with the numbers. Needs root.
set -euo pipefail
straitd=$(realpath "$1") worker=$(realpath "$2") pull=$(realpath "$3")

# ---- Groups: of version 2 where it has the controller, else of version 1 ---------------------------------------------

version=none
if grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
    version=2 top=/sys/fs/cgroup limit=memory.max used=memory.current
    grep -qw memory $top/cgroup.subtree_control || echo +memory >$top/cgroup.subtree_control 2>/dev/null || version=none
elif [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
    version=1 top=/sys/fs/cgroup/memory limit=memory.limit_in_bytes used=memory.usage_in_bytes
fi
[ $version != none ] || { echo "skipped: no control groups for memory" && exit 77; }
groups=("$top/strait-test-$$-daemon" "$top/strait-test-$$-worker")
mkdir "${groups[@]}" 2>/dev/null || { echo "skipped: control groups cannot be made (not root)" && exit 77; }
work=$(mktemp -d /tmp/strait-test-XXXXXX)
pids=()
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
    wait || true
    for group in "${groups[@]}"; do
        for _ in $(seq 100); do rmdir "$group" 2>/dev/null && break || sleep 0.05; done
    done
    rm -rf "$work"
}
trap clean_up EXIT
fail() {
    echo "FAIL: $*"
    exit 1
}
daemon_group=${groups[0]} worker_group=${groups[1]}
within() { # GROUP COMMAND...
    # shellcheck disable=SC2016
    exec sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$@"
}
mib_of() { echo $(($(cat "$1/$used") >> 20)); }
allow() { echo "$2" >"$1/$limit"; }

# ---- Arenas ----------------------------------------------------------------------------------------------------------

allow "$daemon_group" 48M
own=(--socket="$work/s" --listen= --metrics= --transports=shm --workers=2 --chunk-bytes=1M)
code=0
(within "$daemon_group" "$straitd" "${own[@]}" --arena-bytes=64M) 2>"$work/err" || code=$?
[ $code -eq 1 ] || fail "arenas of 96 MiB in a group of 48: status $code"
grep -qE "^straitd: arenas \(arena-bytes and half as much\): 96 MiB, where .*$limit allows 48 MiB, of which [0-9]+ are in use$" \
    "$work/err" || fail "arenas of 96 MiB in a group of 48: $(cat "$work/err")"

(within "$daemon_group" "$straitd" "${own[@]}" --arena-bytes=16M) 2>"$work/log" &
pids+=($!)
for _ in $(seq 200); do
    grep -q msg=ready "$work/log" && break || sleep 0.05
done
before=$(mib_of "$daemon_group")
[ "$before" -ge 24 ] || fail "arenas of 24 MiB: the daemon has $before MiB"

# ---- Pools -----------------------------------------------------------------------------------------------------------

begin() { # FILE ARGUMENT...: the worker's output; it lives until fd 9 is closed
    local file=$1
    shift
    rm -f "$work/hold"
    mkfifo "$work/hold"
    (within "$worker_group" "$worker" "$work/s" "$@") <"$work/hold" >"$work/$file" 2>&1 &
    last=$!
    pids+=($last)
    exec 9>"$work/hold"
    for _ in $(seq 400); do
        [ ! -s "$work/$file" ] || return 0
        kill -0 $last 2>/dev/null || return 0
        sleep 0.05
    done
    fail "the worker says nothing; the daemon: $(cat "$work/log")"
}
finish() {
    exec 9>&-
    wait $last 2>/dev/null || true
}
survives() { kill -0 "${pids[0]}" 2>/dev/null || fail "$1: the daemon is gone: $(cat "$work/log")"; }

allow "$worker_group" 112M
begin pool 80
grep -qx registered "$work/pool" || fail "a pool of 80 MiB for a daemon with 48: $(cat "$work/pool")"
[ "$(mib_of "$worker_group")" -ge 80 ] || fail "the worker has $(mib_of "$worker_group") MiB, its pool 80"
[ $(($(mib_of "$daemon_group") - before)) -lt 4 ] ||
    fail "the daemon had $before MiB, and with a pool of 80 it has $(mib_of "$daemon_group")"
finish
survives "a large pool"

# More than the worker may have is the worker's end.
begin large 160
! grep -qx registered "$work/large" || fail "a pool of 160 MiB in a group of 112"
finish
survives "a worker that is killed"

# Pages that the daemon writes into a pool are its worker's.
timeout 20 "$pull" source "$work/blob" "$work/s" >"$work/first" 2>&1 &
source=$!
timeout 20 "$pull" sink "$work/blob" "$work/s" >"$work/second" 2>&1 || fail "a pull: $(cat "$work/second")"
wait $source || fail "a pull: $(cat "$work/first")"
[ $(($(mib_of "$daemon_group") - before)) -lt 4 ] || fail "after a pull the daemon has $(mib_of "$daemon_group") MiB"
