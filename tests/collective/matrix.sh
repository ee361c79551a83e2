#!/usr/bin/env bash
# matrix.sh SUBJECT LIBSTRAIT_COLL PROGRAMS FAKE_CUDA SCRATCH NCCL_INCLUDE_DIR: libstrait-coll between programs and the fake
# NCCL, one way after the other. The programs, in that folder, say what is wrong; see caller.c.
set -euo pipefail
subject=$1
coll=$(realpath "$2")
tests=$(realpath "$3")
scratch=$5
include=$6
mkdir -p "$scratch"
fake=$tests/fake_libnccl/libnccl.so.2
old=$tests/fake_libnccl-old/libnccl.so.2
export FAKE_NCCL=$fake FAKE_CUDA=$4
unset STRAIT_COLL_NCCL STRAIT_COLL_PRINT LD_PRELOAD LD_LIBRARY_PATH
export STRAIT_COLL=auto # there is no GPU, so nothing is compressed
# What is preloaded comes before the runtime of the sanitizer, which it brings along.
export ASAN_OPTIONS=verify_asan_link_order=0:${ASAN_OPTIONS:-}

# Where ours is called libnccl.so.2.
mkdir -p "$scratch/ours"
ln -sf "$coll" "$scratch/ours/libnccl.so.2"
ours=$scratch/ours/libnccl.so.2

# expect STATUS COMMAND ...: standard error goes to $scratch/err, which is shown if it ends otherwise.
expect() {
    local status=$1 got=0
    shift
    # What captures opens the fake driver, late, and with it such storage (see `leaking`).
    [ "${!#}" != capture ] || set -- "${leaking[@]}" "$@"
    "$@" >"$scratch/out" 2>"$scratch/err" || got=$?
    if [ "$got" -ne "$status" ]; then
        printf 'ended with %s: %s\n' "$got" "$*"
        cat "$scratch/err"
        exit 1
    fi
}

# said N TEXT: N lines of standard error have it.
said() {
    local lines
    lines=$(grep -cF -- "$2" "$scratch/err" || true)
    if [ "$lines" -ne "$1" ]; then
        printf '%s lines, not %s, have: %s\n' "$lines" "$1" "$2"
        cat "$scratch/err"
        exit 1
    fi
}

# exports LIBRARY: the names of its functions.
exports() { nm -D --defined-only "$1" | awk '$2 ~ /[TW]/ { sub(/@.*/, "", $3); print $3 }' | grep -v '^_' | sort; }

# differ TEXT FILE FILE: ends with the text if they do.
differ() {
    diff "$2" "$3" || {
        echo "$1"
        exit 1
    }
}

linked=("$tests/collective_linked")
# LeakSanitizer does not survive the thread-local storage of libraries that are opened late: leaks show in other ways.
leaking=(env "ASAN_OPTIONS=detect_leaks=0:$ASAN_OPTIONS")
by_name=("${leaking[@]}" "$tests/collective_by_name")
with_old=(env "FAKE_NCCL=$old")
uses="every groups comms counts threads fork capture"
quiet() { said 0 strait-coll; }

case $subject in
# Programs that are linked with NCCL, or open what is, while ours is preloaded.
preload)
    preloaded=(env "LD_PRELOAD=$coll" "LD_LIBRARY_PATH=$tests/fake_libnccl")
    expect 0 env "LD_LIBRARY_PATH=$tests/fake_libnccl" "${linked[@]}" every # the program and the fake alone
    for use in $uses; do
        expect 0 "${preloaded[@]}" "${linked[@]}" $use
        quiet
    done
    expect 0 "${preloaded[@]}" "${linked[@]}" --pnccl every
    expect 0 "${preloaded[@]}" STRAIT_COLL=raw "${linked[@]}" every
    expect 0 env "LD_PRELOAD=$coll:$coll" "LD_LIBRARY_PATH=$tests/fake_libnccl" "${linked[@]}" counts
    quiet
    # A tool that overrides some of NCCL's functions, before us and behind us: both see each call once.
    for both in "$tests/libcollective_tool.so:$coll" "$coll:$tests/libcollective_tool.so"; do
        expect 0 "${preloaded[@]}" "LD_PRELOAD=$both" "${linked[@]}" every
        expect 0 "${preloaded[@]}" "LD_PRELOAD=$both" "${linked[@]}" counts
        said 1 "tool: 4 calls"
    done
    # As Python opens a framework that brings its own NCCL: nothing of it is in the scope of what is preloaded.
    for use in $uses; do
        expect 0 env "LD_PRELOAD=$coll" "$tests/collective_by_name" --module "$tests/libcollective_module.so" $use
        quiet
    done
    # Another copy: that one counts, and each call only once.
    cp "$coll" "$scratch/copy.so"
    expect 0 env "LD_PRELOAD=$coll:$scratch/copy.so" "LD_LIBRARY_PATH=$tests/fake_libnccl" STRAIT_COLL_PRINT=1 \
        "${linked[@]}" every
    said 1 "loaded twice: calls go on to $scratch/copy.so"
    said 1 "which counts: it is another copy of this library"
    said 1 "send           bf16"
    # A preloaded library does not catch who opens NCCL by name: documented, and so is the way that does.
    expect 1 "${preloaded[@]}" "${by_name[@]}" --local libnccl.so.2 counts
    ;;
# Ours in the place of libnccl.so.2.
replace)
    named=(env "STRAIT_COLL_NCCL=$fake")
    for use in $uses; do
        expect 0 "${named[@]}" "LD_LIBRARY_PATH=$scratch/ours" "${linked[@]}" $use
        quiet
        for how in --local --global; do
            expect 0 "${named[@]}" "LD_LIBRARY_PATH=$scratch/ours" "${by_name[@]}" $how libnccl.so.2 $use
            quiet
            expect 0 "${named[@]}" "${by_name[@]}" $how "$coll" $use
            quiet
        done
    done
    expect 0 "${named[@]}" "LD_LIBRARY_PATH=$scratch/ours" "${by_name[@]}" --local libnccl.so.2 --pnccl every
    expect 0 "${named[@]}" "LD_LIBRARY_PATH=$scratch/ours" "LD_PRELOAD=$coll" \
        "${by_name[@]}" --local libnccl.so.2 counts
    expect 0 "${named[@]}" "LD_LIBRARY_PATH=$scratch/ours" STRAIT_COLL=raw "${by_name[@]}" --local libnccl.so.2 every
    ;;
# How NCCL itself is found.
find)
    # Opened by its own name: the NCCL that the loader finds, or that the process has already.
    expect 0 env "LD_LIBRARY_PATH=$tests/fake_libnccl" "${by_name[@]}" --local "$coll" counts
    expect 0 env "LD_LIBRARY_PATH=$tests/fake_libnccl" "${by_name[@]}" --global "$coll" every
    expect 0 "$tests/collective_by_name" --module "$tests/libcollective_module.so" --local "$coll" counts
    # A path goes before the order of linking.
    expect 0 "${with_old[@]}" "LD_PRELOAD=$coll" "LD_LIBRARY_PATH=$tests/fake_libnccl" "STRAIT_COLL_NCCL=$old" \
        "${linked[@]}" older
    # An older NCCL, by each way.
    expect 0 "${with_old[@]}" "LD_PRELOAD=$coll" "LD_LIBRARY_PATH=$tests/fake_libnccl-old" "${linked[@]}" older
    said 1 "ncclAlltoAll is not in $old, NCCL 21805"
    said 1 "ncclTeamWorld is not in"
    said 1 "ncclCommGrow is not in"
    said 1 "ncclBroadcastConfig is not in"
    expect 0 "${with_old[@]}" "STRAIT_COLL_NCCL=$old" "${by_name[@]}" --local "$ours" older
    expect 0 "${with_old[@]}" "STRAIT_COLL_NCCL=$old" "${by_name[@]}" --local "$ours" --pnccl older
    said 1 "pncclAlltoAll is not in $old"
    # NCCL's own library, where there is one: it loads without a GPU.
    real=${REAL_NCCL:-/usr/local/cuda/lib/libnccl.so.2}
    if [ -e "$real" ] && ldd "$real" >/dev/null 2>&1; then
        expect 0 env -u FAKE_NCCL "STRAIT_COLL_NCCL=$real" "${by_name[@]}" --local "$coll" real
        cat "$scratch/out"
        expect 0 env -u FAKE_NCCL "LD_PRELOAD=$coll" "LD_LIBRARY_PATH=$(dirname "$real")" "${leaking[@]}" \
            "${linked[@]}" --linked real # NCCL leaks some
    else
        echo "no NCCL at $real: the fake alone"
    fi
    ;;
# Where there is no NCCL.
refuse)
    mkdir -p "$scratch/other" # another library, lest what this machine has is found
    ln -sf "$FAKE_CUDA" "$scratch/other/libnccl.so.2"
    expect 0 env "LD_LIBRARY_PATH=$scratch/other:$(dirname "$FAKE_CUDA")/.." "${by_name[@]}" --local "$coll" missing
    said 1 strait-coll:
    said 1 "no NCCL: libnccl.so.2 has no ncclGetUniqueId. STRAIT_COLL_NCCL names NCCL's by its path"
    expect 0 env "LD_LIBRARY_PATH=$scratch/ours" "${by_name[@]}" --local libnccl.so.2 missing
    said 1 "no NCCL: libnccl.so.2 is this library itself"
    for path in "$coll" "$ours"; do
        expect 0 env "STRAIT_COLL_NCCL=$path" "${by_name[@]}" --local "$coll" missing
        said 1 "STRAIT_COLL_NCCL=$path is this library, not NCCL"
    done
    cp "$coll" "$scratch/copy.so"
    expect 0 env "STRAIT_COLL_NCCL=$scratch/copy.so" "${by_name[@]}" --local "$coll" missing
    said 1 "is this library, not NCCL"
    expect 0 env "STRAIT_COLL_NCCL=$scratch/none.so" "${by_name[@]}" --local "$coll" missing
    said 1 "STRAIT_COLL_NCCL: $scratch/none.so: cannot open"
    expect 0 env "STRAIT_COLL_NCCL=$FAKE_CUDA" "${by_name[@]}" --local "$coll" missing
    said 1 "is not NCCL: it has no ncclGetUniqueId"
    expect 0 env STRAIT_COLL=fast STRAIT_COLL_PRINT=yes STRAIT_COLL_PRNT=1 STRAIT_COLL_WAIT=20s STRAIT_COLL_= "STRAIT_COLL_NCCL=$scratch/none.so" \
        "${by_name[@]}" --local "$coll" missing
    said 1 "STRAIT_COLL=fast is not understood: taken as auto"
    said 1 "STRAIT_COLL_PRINT=yes is not understood: taken as 0"
    said 1 "STRAIT_COLL_WAIT=20s is not understood: taken as 5"
    said 1 "STRAIT_COLL_PRNT is not a setting: not used"
    said 1 "is not a setting"
    ;;
# Reports on standard error.
print)
    run=(env "LD_PRELOAD=$coll" "LD_LIBRARY_PATH=$tests/fake_libnccl" STRAIT_COLL_PRINT=1)
    expect 0 "${run[@]}" "${linked[@]}" counts
    said 3 "NCCL 23203 from $fake" # two communicators, the process
    said 2 "communicator 0x"
    grep -qE '^all_reduce +bf16 +2 +2048 +0 +0 +0 +0 +0  raw: (no GPU|libstrait-coll-cuda)' "$scratch/err"
    expect 0 "${run[@]}" "${linked[@]}" fork
    said 3 "NCCL 23203 from" # a communicator, the parent, the child that calls
    expect 0 "${run[@]}" STRAIT_COLL=raw "${linked[@]}" fork
    said 3 "raw: pinned"
    expect 0 "${run[@]}" STRAIT_COLL=off "${linked[@]}" fork # another spelling
    said 3 "raw: pinned"
    # Encryption is said once, and in reports.
    expect 0 "${run[@]}" STRAIT_COLL_PRINT=0 "${linked[@]}" encrypt
    said 1 strait-coll
    said 1 "strait-coll: ncclSetEncryption: communicators that are made from now on stay raw between hosts"
    # Programs that never call NCCL say nothing, nor do those that are not asked to.
    expect 0 "${run[@]}" true
    quiet
    expect 0 "${run[@]}" STRAIT_COLL_PRINT=0 "${linked[@]}" counts
    quiet
    ;;
# What it exports is what NCCL does, under both names, and what collective.h declares, no more; with a version. It needs
# nothing but the system.
exports)
    exports "$coll" >"$scratch/exported"
    cat "$(dirname "$0")"/../../include/strait/{collective,status}.h | tr '\n' ' ' | grep -oE 'STRAIT_API [^;{]*\(' |
        grep -oE 'strait_[a-z_]+\($' | tr -d '(' | sort >"$scratch/declared"
    grep '^strait' "$scratch/exported" >"$scratch/strait"
    differ "not what collective.h declares" "$scratch/declared" "$scratch/strait"

    grep -v '^strait' "$scratch/exported" >"$scratch/nccl"
    exports "$fake" | grep -v '^fake_' >"$scratch/fake"
    differ "not what the tests call" "$scratch/fake" "$scratch/nccl"
    # What the newest NCCL exports, by name and as pncclX, but for what is listed as missing.
    here=$(dirname "$0")
    grep -v '^#' "$here/nccl_missing.txt" | awk 'NF > 1 { print $1 }' | sort >"$scratch/missing"
    grep '^nccl' "$here/nccl_functions.txt" | awk '{ print $1 } NF == 1 { print "p" $1 }' | sort >"$scratch/newest"
    differ "listed as missing, but not of NCCL" /dev/null <(comm -23 "$scratch/missing" "$scratch/newest")
    comm -23 "$scratch/newest" "$scratch/missing" >"$scratch/expected"
    differ "not what $(head -1 "$here/nccl_functions.txt" | grep -oE 'NCCL [0-9.]+') exports" "$scratch/expected" "$scratch/nccl"
    for real in ${REAL_NCCL:-/usr/local/cuda/lib/libnccl.so.2}; do
        [ -e "$real" ] || continue
        exports "$real" | grep -E '^p?nccl' >"$scratch/real"
        differ "of $real, not exported" /dev/null <(comm -23 "$scratch/real" "$scratch/nccl" | comm -23 - "$scratch/missing")
        echo "compared with $real"
    done
    if [ -e "$include/nccl.h" ]; then
        grep -oE '\bp?nccl[A-Z][A-Za-z0-9]+\(' "$include/nccl.h" | tr -d '(' | sort -u >"$scratch/header"
        missing=$(comm -23 "$scratch/header" "$scratch/nccl")
        [ -z "$missing" ] || { echo "of nccl.h, not exported: $missing" && exit 1; }
        echo "compared with $include/nccl.h"
    fi
    if nm -D --defined-only "$coll" | grep -E ' [TW] p?nccl' | grep -v '@@STRAIT_COLL_0'; then
        echo "these have no version"
        exit 1
    fi
    if readelf -d "$coll" | grep NEEDED | grep -E 'cuda|nccl|strait|ucp|uv'; then
        echo "libstrait-coll must not need these"
        exit 1
    fi
    ;;
*)
    echo "no subject $subject"
    exit 1
    ;;
esac
echo "collective $subject: all passed"
