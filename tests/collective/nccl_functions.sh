#!/usr/bin/env bash
# nccl_functions.sh WHEEL|LIBRARY [VERSION [LIST]]: writes nccl_functions.txt, or LIST, anew, from a wheel of
# nvidia-nccl-cu13 (`pip download --no-deps nvidia-nccl-cu13`) or from a libnccl.so.2, whose version then has to be given.
set -euo pipefail
from=$1
list=${3:-$(dirname "$(realpath "$0")")/nccl_functions.txt}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case $from in
*.whl)
    version=$(basename "$from" | cut -d- -f2)
    unzip -qoj "$from" '*/libnccl.so.2' -d "$scratch"
    library=$scratch/libnccl.so.2
    ;;
*)
    version=$2
    library=$from
    ;;
esac
{
    echo "# Functions that NCCL $version exports, by nccl_functions.sh; each is there as pncclX, too, unless it says otherwise."
    nm -D --defined-only "$library" | awk '$2 ~ /[TW]/ { print $3 }' | grep -E '^p?nccl' | sort >"$scratch/all"
    sed -n 's/^p//p' "$scratch/all" | sort >"$scratch/twice"
    grep -v '^p' "$scratch/all" | while read -r name; do
        grep -qx "$name" "$scratch/twice" && echo "$name" || echo "$name alone"
    done
} >"$scratch/list"
mv "$scratch/list" "$list"
grep -c '^nccl' "$list"
