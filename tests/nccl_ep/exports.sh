#!/bin/sh
# exports.sh LIBRARY: whether the functions of functions.txt, and nothing else, are what it exports.
set -eu
here=$(dirname "$0")
exported=$(nm -D --defined-only "$1" | awk '{ print $3 }' | sort)
expected=$(grep -v '^#' "$here/functions.txt" | sort)
[ "$(printf '%s\n' "$expected" | wc -l)" -eq 18 ]
if [ "$exported" != "$expected" ]; then
    printf '%s exports:\n%s\nand NCCL EP:\n%s\n' "$1" "$exported" "$expected"
    exit 1
fi
# It finds NCCL and the driver in the process.
if readelf -d "$1" | grep -E 'NEEDED.*(nccl\.so|libcuda)'; then
    exit 1
fi
