#!/usr/bin/env bash
# families.sh STRAITD PULL: daemons of four hosts, which are namespaces on one link: host a and b have both families, c
# only IPv4, d only IPv6. Daemons of a listen in every way that there is; a page pull runs from each into one of b, c or
# d, or what cannot work says so at once. HAS_UCX=1: this build has that transport.
set -euo pipefail
straitd=$(realpath "$1") pull=$(realpath "$2")
if [ -z "${FAMILIES:-}" ]; then
    for tool in unshare nsenter ip; do
        command -v $tool >/dev/null || { echo "skipped: no $tool" && exit 77; }
    done
    # With this shell, the first process of its namespace, all others end.
    unshare -Urnmpf --mount-proc true 2>/dev/null || { echo "skipped: no namespaces" && exit 77; }
    FAMILIES=1 exec unshare -Urnmpf --mount-proc --kill-child "$0" "$straitd" "$pull"
fi

work=$(mktemp -d /tmp/strait-test-XXXXXX) # a daemon's socket needs a short path
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    failed=1
}

# ---- The hosts: a is this namespace, and its eth0 a bridge to those of the others ------------------------------------

[ -e /proc/sys/net/ipv6 ] || { echo "skipped: a kernel without IPv6" && exit 77; }
ip link add eth0 address 02:00:00:00:00:01 type bridge 2>/dev/null || { echo "skipped: no bridge" && exit 77; }
declare -A holder
on() { # HOST COMMAND...
    local host=$1
    shift
    if [ "$host" = a ]; then "$@"; else nsenter -t "${holder[$host]}" -n -m -- "$@"; fi
}
for host in b c d; do
    mkfifo "$work/$host.begun"
    # shellcheck disable=SC2016
    unshare -nm sh -c 'echo >"$0" && exec sleep 600' "$work/$host.begun" &
    holder[$host]=$!
    read -r <"$work/$host.begun"
    ip link add "to-$host" type veth peer name eth0 netns "${holder[$host]}" 2>/dev/null ||
        { echo "skipped: no veth" && exit 77; }
    ip link set "to-$host" addrgenmode none master eth0 up
done
number=0
for host in a b c d; do
    number=$((number + 1))
    on $host ip link set lo up
    if [ $host = c ]; then
        on $host sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6'
    else
        on $host ip link set eth0 addrgenmode none
        on $host ip address add fd99::$number/64 dev eth0 nodad
        on $host ip address add fe80::$number/64 dev eth0 nodad
    fi
    [ $host = d ] || on $host ip address add 10.199.1.$number/24 dev eth0
    on $host ip link set eth0 up
    [ $host = a ] || on $host sh -c "printf '127.0.0.1 localhost\nfd99::1 both-a\n10.199.1.1 both-a\n' >'$work/$host.hosts' &&
        mount --bind '$work/$host.hosts' /etc/hosts"
done
# Nobody answers there, and nobody refuses for a minute: longer than any attempt, and than the pull that needs the next
# address.
on b ip route add 10.199.9.9/32 dev eth0
on b sh -c 'echo 60 >/proc/sys/net/ipv4/neigh/eth0/mcast_solicit'

# ---- Daemons ---------------------------------------------------------------------------------------------------------

begin() { # HOST NAME OPTION...: its socket is NAME, its log NAME.log
    local host=$1 name=$2
    shift 2
    : >"$work/$name.log"
    on "$host" "$straitd" --socket="$work/$name" --metrics= --insecure-no-auth --arena-bytes=1M --chunk-bytes=1M \
        --workers=2 "$@" 2>"$work/$name.log" &
}

await() { # FILE TEXT: it is there within 10 s
    for _ in $(seq 200); do
        ! grep -qF -e "$2" "$1" || return 0
        sleep 0.05
    done
    fail "no '$2' in $1: $(tail -5 "$1")"
    return 1
}

begin b b --listen='*:7350'
begin c c --listen=eth0:7350 --transports=auto,ucx # ucx: for the daemon of that name
begin d d --listen='*:7350'
begin a v4 --listen=10.199.1.1:7401
begin a v6 --listen=[fd99::1]:7402
begin a any --listen='*:7403'
begin a any6 --listen=[::]:7404
begin a interface --listen=eth0:7405
begin a mapped --listen=[::ffff:10.199.1.1]:7406
begin a linklocal --listen=[fe80::1%eth0]:7407 --advertise=[fe80::1%eth0]:7407
begin a name --listen=10.199.1.1:7408 --advertise=both-a:7408
begin a hole --listen=eth0:7409 --advertise=10.199.9.9:7409,10.199.1.1:7409
begin a alien --listen=[fd99::1]:7410 --advertise=[fd99::1]:7410
[ "${HAS_UCX:-0}" != 1 ] || begin a ucx --listen='*:7412' --transports=ucx
begin a zone --listen=[fe80::1%eth0]:7411 --advertise=[fe80::1%eth7]:7411
for log in "$work"/*.log; do
    await "$log" msg=ready || exit 1
done

# ---- Pulls -----------------------------------------------------------------------------------------------------------

# pulls FROM INTO ADDRESS [AT]: the daemon INTO pulls from the daemon FROM, whose advertised list it knows as ADDRESS, and
# which it reaches at AT.
pulls() {
    local from=$1 into=$2 address=$3 host=$2 blob=$work/blob.$1.$2 status=0 source
    timeout 60 "$pull" source "$blob" "$work/$from" >"$work/first" 2>&1 &
    source=$!
    timeout 40 nsenter -t "${holder[$host]}" -n -m -- "$pull" sink "$blob" "$work/$into" >"$work/second" 2>&1 || status=$?
    [ $status -eq 0 ] || fail "$into from $from ends with $status: $(cat "$work/second"), $(tail -3 "$work/$into.log")"
    [ $status -eq 0 ] || kill $source
    wait $source || fail "$from into $into: $(cat "$work/first"), $(tail -3 "$work/$from.log")"
    await "$work/$into.log" "msg=\"peer up\" peer=$address at=${4:-$address} " || true
}

refuses() { # FROM INTO TEXT: the daemon INTO cannot reach FROM, and says why within a second
    local from=$1 into=$2 blob=$work/blob.$1.$2 source sink
    "$pull" source "$blob" "$work/$from" >"$work/first" 2>&1 &
    source=$!
    nsenter -t "${holder[$into]}" -n -m -- "$pull" sink "$blob" "$work/$into" >"$work/second" 2>&1 &
    sink=$!
    await "$work/$into.log" "$3" || true
    kill -KILL $source $sink 2>/dev/null || true
    wait $source $sink 2>/dev/null || true
}

pulls v4 c 10.199.1.1:7401
pulls v4 b 10.199.1.1:7401
pulls v6 d '[fd99::1]:7402'
pulls v6 b '[fd99::1]:7402'
pulls any b '10.199.1.1:7403,[fd99::1]:7403' 10.199.1.1:7403
pulls any c '10.199.1.1:7403,[fd99::1]:7403' 10.199.1.1:7403
pulls any d '10.199.1.1:7403,[fd99::1]:7403' '[fd99::1]:7403'
pulls any6 d '[fd99::1]:7404'
pulls interface c '10.199.1.1:7405,[fd99::1]:7405' 10.199.1.1:7405
pulls interface d '10.199.1.1:7405,[fd99::1]:7405' '[fd99::1]:7405'
pulls mapped b 10.199.1.1:7406
[ "${HAS_UCX:-0}" != 1 ] || pulls ucx c '10.199.1.1:7412,[fd99::1]:7412' 10.199.1.1:7412 # UCX listens where control does
pulls linklocal b '[fe80::1%eth0]:7407'
pulls name b both-a:7408 10.199.1.1:7408
pulls hole b 10.199.9.9:7409,10.199.1.1:7409 10.199.1.1:7409
refuses alien c 'no address of a family that this host can reach: '
refuses zone b 'its zone is no interface of this host'
exit $failed
