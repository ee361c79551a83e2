#!/usr/bin/env bash
# exports.sh LIBSTRAIT_COLL FAKE NCCL_INCLUDE_DIR: libstrait-coll exports what NCCL does, under both names, and what
# collective.h declares, no more; with a version; and needs nothing but the system.
set -euo pipefail
library=$1 fake=$2 include=${3:-}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

exports() { nm -D --defined-only "$1" | awk '$2 ~ /[TW]/ { sub(/@.*/, "", $3); print $3 }' | grep -v '^_' | sort; }
differ() { # TEXT FILE FILE
    diff "$2" "$3" || {
        echo "$1"
        exit 1
    }
}

exports "$library" >"$work/ours"
cat include/strait/collective.h include/strait/status.h | tr '\n' ' ' | grep -oE 'STRAIT_API [^;{]*\(' |
    grep -oE 'strait_[a-z_]+\($' | tr -d '(' | sort >"$work/declared"
grep '^strait' "$work/ours" >"$work/strait"
differ "not what collective.h declares" "$work/declared" "$work/strait"

grep -v '^strait' "$work/ours" >"$work/nccl"
exports "$fake" | grep -v '^fake_' >"$work/fake"
differ "not what the tests call" "$work/fake" "$work/nccl"
for real in ${REAL_NCCL:-/usr/local/cuda/lib/libnccl.so.2}; do
    [ -e "$real" ] || continue
    # One of its functions is for itself.
    exports "$real" | grep -E '^p?nccl' | grep -v '^ncclResetDebugInitInternal$' >"$work/real"
    [ "$(grep -c . "$work/real")" -eq 104 ] || { echo "$real is not 2.28: not compared" && continue; }
    differ "not what $real exports" "$work/real" "$work/nccl"
    echo "compared with $real"
done
if [ -e "$include/nccl.h" ] && grep -q 'NCCL_MINOR 28' "$include/nccl.h"; then
    grep -oE '\bp?nccl[A-Z][A-Za-z]+\(' "$include/nccl.h" | tr -d '(' | sort -u >"$work/header"
    missing=$(comm -23 "$work/header" "$work/nccl")
    [ -z "$missing" ] || { echo "of nccl.h, not exported: $missing" && exit 1; }
    echo "compared with $include/nccl.h"
fi
if nm -D --defined-only "$library" | grep -E ' [TW] p?nccl' | grep -v '@@STRAIT_COLL_0'; then
    echo "these have no version"
    exit 1
fi
if readelf -d "$library" | grep NEEDED | grep -E 'cuda|nccl|strait|ucp|uv'; then
    echo "libstrait-coll must not need these"
    exit 1
fi
echo "exports: all passed"
