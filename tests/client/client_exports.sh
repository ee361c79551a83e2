#!/bin/sh
# client_exports.sh LIBRARY: libstrait exports what strait.h declares, no more and no less, and needs neither CUDA nor
# UCX nor the codec.
set -eu
library=$1
cd "$(dirname "$0")/../.."
declared=$(cat include/strait/strait.h include/strait/status.h | tr '\n' ' ' |
    grep -oE 'STRAIT_API [^;{]*\(' | grep -oE 'strait_[a-z_]+\($' | tr -d '(' | sort)
exported=$(nm -D --defined-only "$library" | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' | sort)
if [ "$declared" != "$exported" ]; then
    printf 'declared:\n%s\nexported:\n%s\n' "$declared" "$exported"
    exit 1
fi
if readelf -d "$library" | grep NEEDED | grep -E 'cuda|ucp|ucs|uv|strait|pthread'; then
    echo "libstrait must not need these"
    exit 1
fi
