#!/usr/bin/env bash
# apart.sh PROGRAM: ranks on two hosts, which are namespaces: with a network between them, and neither memory nor
# loopback in common. They meet where the id says, and cannot in the memory of a host. Where a firewall drops what one of
# them sends, it waits for 4 s.
set -euo pipefail
program=$(realpath "$1") ranks=3
if [ -z "${APART:-}" ]; then
    for tool in unshare nsenter ip; do
        command -v $tool >/dev/null || { echo "skipped: no $tool" && exit 77; }
    done
    unshare -Urnm true 2>/dev/null || { echo "skipped: no namespaces" && exit 77; }
    APART=1 exec unshare -Urnm "$0" "$program"
fi

work=$(mktemp -d)
other=
trap '[ -z "$other" ] || kill "$other"; rm -rf "$work"' EXIT
mount -t tmpfs none /dev/shm
ip link add here type veth peer name there 2>/dev/null || { echo "skipped: no veth" && exit 77; }
mkfifo "$work/begun"
# shellcheck disable=SC2016
unshare -nm sh -c 'mount -t tmpfs none /dev/shm && echo >"$0" && exec sleep 600' "$work/begun" &
other=$!
read -r <"$work/begun"
there() { nsenter -t "$other" -n -m "$@"; }
ip link set there netns "$other"
ip address add 10.77.0.1/24 dev here
ip link set lo up
ip link set here up
there ip address add 10.77.0.2/24 dev there
there ip link set lo up
there ip link set there up

# meet KIND: rank 1 is there, the others here. Rank 0 goes when all others have.
meet() {
    local id=$work/$1.id pids=() place rank
    mkfifo "$work/$1.end"
    "$program" "$id" "$1" 0 $ranks <"$work/$1.end" >"$work/$1.0" &
    local first=$!
    exec 9>"$work/$1.end"
    for ((rank = 1; rank < ranks; rank++)); do
        place=
        [ $rank -ne 1 ] || place=there
        $place "$program" "$id" "$1" $rank $ranks >"$work/$1.$rank" 9>&- &
        pids+=($!)
    done
    wait "${pids[@]}"
    exec 9>&-
    wait $first
    cat "$work/$1".[0-9]
}

expect() { # COUNT TEXT FILE
    cat "$3"
    [ "$(grep -cE "$2" "$3")" -eq "$1" ] || { echo "not what was expected: $2" && exit 1; }
}
meet there >"$work/there"
expect $ranks '^rank [0-9]: go$' "$work/there"
meet here >"$work/here"
expect $ranks '^rank [0-9]: ranks? [0-9, ]+ did not come in time' "$work/here"
# Frames for an address that nobody has arrive, and are dropped without an answer, as by a firewall.
there ip neighbour replace 10.77.0.1 lladdr 02:00:00:00:00:fe dev there nud permanent
meet dropped >"$work/dropped"
expect 1 '^rank 1: not reached for [45][0-9]{3} ms$' "$work/dropped"
expect $ranks '^rank [0-9]: ranks? [0-9, ]+ did not come in time' "$work/dropped"
echo "apart: all passed"
