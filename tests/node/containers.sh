#!/usr/bin/env bash
# containers.sh STRAITD PULL: daemon and workers as a container has them: in namespaces of users, processes, IPC, network
# and mounts of their own, with a root that nobody may write to and 1 MiB of /dev/shm.
set -euo pipefail
straitd=$(realpath "$1") pull=$(realpath "$2")
if [ -z "${CONTAINED:-}" ]; then
    for tool in unshare ip mount; do
        command -v $tool >/dev/null || { echo "skipped: no $tool" && exit 77; }
    done
    unshare -Urnmipf --mount-proc true 2>/dev/null || { echo "skipped: no namespaces" && exit 77; }
    CONTAINED=1 exec unshare -Urnmipf --mount-proc --kill-child "$0" "$straitd" "$pull"
fi

fail() {
    echo "FAIL: $*"
    exit 1
}

ip link set lo up
mount -t tmpfs -o size=1M none /dev/shm
# What is mounted over must not have the build in it. ThreadSanitizer has files of its own there.
export TMPDIR=/tmp
case $straitd in /tmp/*) TMPDIR=/var/tmp ;; esac
mount -t tmpfs -o size=16M none $TMPDIR
mkdir $TMPDIR/run $TMPDIR/outside
# The root, and whatever is mounted in it: whoever writes anywhere but there fails.
for point in $(awk '$5 != ENVIRON["TMPDIR"] && $5 != "/dev/shm" && $5 !~ /^\/(proc|dev|sys)/ { print $5 }' /proc/self/mountinfo | sort -u); do
    mount -o remount,bind,ro "$point" 2>/dev/null || { echo "skipped: $point cannot be made read-only" && exit 77; }
done
! touch "$(dirname "$0")/written" 2>/dev/null || fail "the root can be written to"

await() { # FILE REGEX: it is there within 10 s; a daemon logs in a thread of its own
    for _ in $(seq 200); do
        ! grep -q "$2" "$1" || return 0
        sleep 0.05
    done
    fail "no '$2' in $1: $(cat "$1")"
}

start() { # NAME OPTION...
    local name=$1
    shift
    "$straitd" --socket="$TMPDIR/run/$name" --listen=127.0.0.1:0 --metrics= --arena-bytes=8M "$@" 2>"$TMPDIR/outside/$name.log" &
    await "$TMPDIR/outside/$name.log" msg=ready
}

pulls() { # FROM INTO TRANSPORT COMMAND...: the sink is begun by the command
    timeout 20 "$pull" source $TMPDIR/outside/blob "$TMPDIR/run/$1" >$TMPDIR/outside/first 2>&1 &
    local source=$!
    timeout 20 "${@:4}" "$pull" sink $TMPDIR/outside/blob "$TMPDIR/run/$2" >$TMPDIR/outside/second 2>&1 ||
        fail "$1 to $2: $(cat $TMPDIR/outside/second), $(tail -3 "$TMPDIR/outside/$2.log")"
    wait $source || fail "$1: $(cat $TMPDIR/outside/first)"
    [ "$1" = "$2" ] || await "$TMPDIR/outside/$2.log" "msg=\"peer up\" .* transport=$3 "
}

start a --transports=shm,tcp
start b --transports=shm,tcp
start c --transports=tcp
pulls a a none
pulls a b shm
pulls a c tcp
# The worker has namespaces of users and processes of its own.
pulls a b shm unshare -Upf --kill-child --mount-proc
[ "$(find /dev/shm -mindepth 1 | wc -l)" = 0 ] || fail "in /dev/shm: $(find /dev/shm)"
kill %1
wait %1 || fail "the daemon's end: $(cat $TMPDIR/outside/a.log)"
[ "$(find $TMPDIR/run -mindepth 1 | grep -cvE '/([bc]|[abc]\.lock)$')" = 0 ] || fail "left: $(ls $TMPDIR/run)"
