#!/bin/sh
# straitd.sh STRAITD SCRATCH: the daemon's command line: what is wrong with it is told in one line, and it does not
# start; its manual has the options as deploy/manual.sh writes them; and it leaves signals of errors to the system.
# SCRATCH is overwritten.
# HAS_UCX=1: this build has that transport.
set -eu
straitd=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
rm -rf "$2"
mkdir -p "$2"
cd "$2"
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

refuses() { # STATUS TEXT ARGUMENT...: ends with that status, and the text is all of a line that it says
    want=$1 text=$2 code=0
    shift 2
    timeout 20 "$straitd" "$@" >out 2>err || code=$?
    [ $code -eq "$want" ] || fail "exit status $code, not $want: straitd $*"
    grep -qxF -e "straitd: $text" err || fail "straitd $* says: $(cat err)"
    ! grep -q 'msg=stop' err || fail "straitd $* stops without having started: $(cat err)"
}

prints() { # TEXT ARGUMENT...
    text=$1
    shift
    timeout 20 "$straitd" "$@" >out 2>err || fail "exit status $?: straitd $*"
    grep -qF -e "$text" out || fail "straitd $* prints: $(head -3 out)"
    [ ! -s err ] || fail "straitd $* says: $(cat err)"
}

prints "usage: straitd" --help
prints "usage: straitd" -h
prints "straitd " --version
prints '"schema":"straitd examine"' --examine --socket "$PWD/none"
prints '"why":"is not host:port"' --probe nonsense --socket "$PWD/none"
prints "clients = 7" --print-config --clients 7
prints "clients = 7" --print-config --clients=7

echo "clients = 8" >good.conf
prints "clients = 8" --config good.conf --print-config
prints "clients = 8" --config=good.conf --print-config
prints "clients = 9" --config good.conf --clients 9 --print-config

"$root/deploy/manual.sh" "$straitd" "$root/docs/straitd.8" >straitd.8 && cmp straitd.8 "$root/docs/straitd.8" ||
    fail "docs/straitd.8 is not what deploy/manual.sh makes of the options"

refuses 2 "--config: needs a file" --config
refuses 2 "--config: needs a file" --config=
refuses 2 "--probe: needs an address" --probe
refuses 2 "/nowhere/straitd.conf: No such file or directory" --config /nowhere/straitd.conf
refuses 2 "--clients: needs a value" --clients
refuses 2 "command line: no option is called clinets" --clinets 7
refuses 2 "operand: is not an option" operand
refuses 2 "no: is not an option; write --insecure-no-auth=no" --insecure-no-auth no
refuses 2 "command line: option gpu-peer is now gpu-wires=peer (pinned: without it)" --gpu-peer=no
refuses 2 "--coding: best is none of: auto,raw,top16,tiered,base,split,parts" --coding best
refuses 2 "listen: 0.0.0.0:0 is not a loopback address: it needs secret-file or tls-certificate (or insecure-no-auth)" --listen 0.0.0.0:0

echo "coding = best" >bad.conf
refuses 2 "bad.conf:1: coding: best is none of: auto,raw,top16,tiered,base,split,parts" --config bad.conf

own="--socket $PWD/s --listen 127.0.0.1:0 --metrics= --arena-bytes 4M --chunk-bytes 4M"
# shellcheck disable=SC2086
refuses 1 "codebook: /nowhere/codebook: No such file or directory" $own --codebook /nowhere/codebook
# Two thirds of the machine's memory and a little more: with the send arena that is more than all of it. Were it taken
# after all, the kernel would end this shell's child first.
memory=$(($(getconf _PHYS_PAGES) * ($(getconf PAGESIZE) / 1024)))
arena=$(((memory * 2 / 3 / 1024 + 8) * 1024))
if [ "$arena" -lt 1000000000 ]; then
    echo 1000 >/proc/self/oom_score_adj
    # shellcheck disable=SC2086
    refuses 1 "arenas (arena-bytes and half as much): $((arena * 3 / 2 / 1024)) MiB, where this machine has $((memory / 1024))" \
        $own --arena-bytes "${arena}K"
fi
# shellcheck disable=SC2086
refuses 1 "nccl-options: 'blocks=x' is not understood" $own --nccl-options blocks=x
if [ "${HAS_UCX:-0}" = 1 ]; then
    # shellcheck disable=SC2086
    refuses 1 "ucx-options: 'colour=red' is not understood" $own --ucx-options colour=red
    # shellcheck disable=SC2086
    refuses 1 "nccl-options: 'colour=red' is not understood" $own --nccl-options colour=red
    # shellcheck disable=SC2086
    refuses 1 "ucx-options: 'tls=tcp,posix' is not understood; tls may not name posix, sysv, cma, xpmem, self, sm, shm, mm or all" $own --ucx-options tls=tcp,posix
else
    # shellcheck disable=SC2086
    refuses 1 "transports = ucx: none can be used (ucx: not in this build)" $own --transports ucx
fi
[ ! -e s ] || fail "a daemon that did not start left its socket"

checks() { # STATUS PROBLEMS ARGUMENT...: so many lines, and nothing is left behind
    want=$1 lines=$2 code=0
    shift 2
    timeout 20 "$straitd" --check-config "$@" >out 2>err || code=$?
    [ $code -eq "$want" ] || fail "exit status $code, not $want: straitd --check-config $*: $(cat err)"
    [ "$(grep -c '^straitd: ' err || true)" -eq "$lines" ] || fail "not $lines problems: $(cat err)"
}

mkdir checked
# shellcheck disable=SC2086
checks 0 0 $own --socket "$PWD/checked/new/s" --transports shm
grep -qxF "straitd: the configuration is good" out || fail "--check-config prints: $(cat out)"
[ -z "$(ls checked)" ] || fail "--check-config makes $(ls checked)"
touch checked/file
# shellcheck disable=SC2086
checks 1 1 $own --socket "$PWD/checked/file"
grep -qxF "straitd: socket: $PWD/checked/file: exists and is no socket" err || fail "$(cat err)"
# shellcheck disable=SC2086
checks 1 3 $own --socket /proc/nowhere/deep/s --codebook /nowhere/codebook --nccl-options blocks=x
grep -qxF "straitd: codebook: /nowhere/codebook: No such file or directory" err || fail "$(cat err)"
checks 2 1 --clinets 7
printf 'tenant = a\nuids = 1\nrate = much\n' >bad.tenants
printf 'tenant = a\nuids = 1\n' >good.tenants
# shellcheck disable=SC2086
checks 1 2 $own --codebook /nowhere/codebook --tenants-file bad.tenants
grep -q "^straitd: tenants-file: bad.tenants:3: rate: much " err || fail "$(cat err)"
# shellcheck disable=SC2086
checks 1 1 $own --tenants-file /nowhere/tenants
# shellcheck disable=SC2086
checks 0 0 $own --tenants-file good.tenants

starts() { # ARGUMENT...: it is ready; what it says is in err
    : >err # of the one before
    "$straitd" "$@" >out 2>err &
    daemon=$!
    for _ in $(seq 200); do
        grep -q msg=ready err && return
        sleep 0.1
    done
    fail "straitd $* does not start: $(cat err)"
}

ends() { # when it is told to
    # Again and again: ThreadSanitizer loses a signal now and then that comes while the daemon starts. But not any more
    # when it has come: behind its end, AddressSanitizer looks for leaks for more than a second on a busy machine.
    { while ! grep -q msg=stopping err && kill -TERM $daemon; do sleep 1; done; } >/dev/null 2>&1 &
    again=$!
    wait $daemon || fail "it does not end: $(cat err)"
    kill $again 2>/dev/null || true
    wait $again 2>/dev/null || true
}

listening() { # the TCP ports that the daemon listens on, in hexadecimal
    for socket in $(readlink /proc/$daemon/fd/* | sed -n 's/^socket:\[\([0-9]*\)\]$/\1/p'); do
        awk -v inode="$socket" '$4 == "0A" && $10 == inode { sub(/.*:/, "", $2); print $2 }' /proc/$daemon/net/tcp \
            /proc/$daemon/net/tcp6
    done
}

# Whatever transports it may use, a daemon opens no other ports than those that its options name, and no memory that
# others could map.
for transports in auto shm,tcp tcp $([ "${HAS_UCX:-0}" = 0 ] || echo tcp,ucx ucx); do
    # shellcheck disable=SC2086
    starts $own --metrics 127.0.0.1:0 --transports $transports
    ports=$(listening | sort -u | wc -l)
    [ "$ports" = 2 ] || fail "transports $transports: $ports ports: $(listening)"
    ! awk -v pid=$daemon '$5 == pid { found = 1 } END { exit !found }' /proc/sysvipc/shm ||
        fail "transports $transports: it has segments of System V"
    ends
done

if [ "${HAS_UCX:-0}" = 0 ]; then
    # shellcheck disable=SC2086
    starts $own --transports ucx,shm
    ends
    grep -q 'msg="transport left out" transport=ucx error="not in this build"' err || fail "ucx is left out: $(cat err)"
fi

says() { # TEXT: within ten seconds
    for _ in $(seq 100); do
        ! grep -qF -e "$1" err || return 0
        sleep 0.1
    done
    fail "it does not say $1: $(cat err)"
}

# A daemon that runs holds what the check would need.
starts --socket "$PWD/s" --listen 127.0.0.1:0 --metrics= --arena-bytes 4M --chunk-bytes 4M --transports shm
inode=$(stat -c %i s)
listens=$(ls -l /proc/$daemon/fd | sed -n 's/.*socket:\[\([0-9]*\)\].*/\1/p' | while read -r socket; do
    awk -v inode="$socket" '$10 == inode && $4 == "0A" { print $2 }' /proc/net/tcp
done)
port=$((0x${listens#*:}))
checks 0 0 --socket "$PWD/s" --listen "127.0.0.1:$port" --metrics= --arena-bytes 4M --chunk-bytes 4M --transports shm
checks 1 1 --socket "$PWD/other" --listen "127.0.0.1:$port" --metrics= --arena-bytes 4M --chunk-bytes 4M --transports shm
grep -qxF "straitd: listen: 127.0.0.1:$port: Address already in use" err || fail "$(cat err)"
[ "$(stat -c %i s)" = "$inode" ] || fail "--check-config replaced the socket of a daemon that runs"
ends

# SIGHUP reads the options again and never ends the daemon: not while it starts, and not with a bad file.
printf 'log-level = info\ndrain-timeout = 9s\nclients = 8\n' >live.conf
: >err
# shellcheck disable=SC2086
"$straitd" $own --transports shm --config live.conf --clients 9 >out 2>err &
daemon=$!
until grep -q '^SigBlk:.*[13579bdf]$' /proc/$daemon/status || ! kill -0 $daemon; do
    sleep 0.01 # until its main has begun
done
for _ in $(seq 200); do
    kill -HUP $daemon
    ! grep -q msg=ready err || break
    sleep 0.01
done
says 'msg=reloaded options="" codebook=same'
printf 'drain-timeout = 8s\nclients = 7\nlisten = 127.0.0.1:1\nworkers = 3\n' >live.conf
kill -HUP $daemon # flags override the file again: --clients and --listen
says 'msg=reloaded options="drain-timeout" codebook=same'
says 'msg="needs a restart" options="workers"'
printf 'drain-timeout = 7s\ncodebook = live.conf\n' >live.conf
kill -HUP $daemon
says 'msg="not reloaded: everything stays as it is" error="codebook: live.conf is no codebook set'
[ "$(grep -c level=error err)" = 1 ] || fail "a bad file is told in more than one line: $(cat err)"
printf 'tenants-file = bad.tenants\n' >live.conf
kill -HUP $daemon
says 'msg="not reloaded: everything stays as it is" error="tenants-file: bad.tenants:3: rate: much '
printf 'tenants-file = good.tenants\n' >live.conf
kill -HUP $daemon
says 'msg=reloaded options="tenants-file, drain-timeout" codebook=same'
printf 'log-level = error\n' >live.conf
kill -HUP $daemon
sleep 0.3
lines=$(wc -l <err)
kill -HUP $daemon
sleep 0.3
[ "$(wc -l <err)" = "$lines" ] || fail "log-level is not applied: $(cat err)"
ends

catches() { # SIGNAL...: those of them for which the daemon has handlers
    caught=$((0x$(sed -n 's/^SigCgt:[[:space:]]*//p' /proc/$daemon/status)))
    for signal in "$@"; do
        [ $((caught >> (signal - 1) & 1)) -eq 0 ] || printf '%s ' "$signal"
    done
}

# UCX takes SIGHUP, SIGILL, SIGBUS, SIGFPE and SIGSEGV when it is loaded, and so may sanitizers: the daemon leaves them to
# the system, except for who wants backtraces.
if [ "${HAS_UCX:-0}" = 1 ]; then
    unset UCX_HANDLE_ERRORS UCX_DEBUG_SIGNO
    leave="handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0"
    export ASAN_OPTIONS="$leave" TSAN_OPTIONS="$leave" UBSAN_OPTIONS="$leave"
    # shellcheck disable=SC2086
    starts $own --transports shm
    [ "$(catches 1 4 7 8 11 15)" = "15 " ] || fail "it catches signals $(catches 1 4 7 8 11 15)"
    ends
    export UCX_HANDLE_ERRORS=bt
    # shellcheck disable=SC2086
    starts $own --transports shm
    [ "$(catches 11)" = "11 " ] || fail "it makes no backtraces"
    ends
fi
exit $failed
