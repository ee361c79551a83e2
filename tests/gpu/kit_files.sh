# kit_files.sh: what kits for machines with GPUs share. For scripts that are run by sh -eu and read it.

# copy FILE DIR: what a link names, under the link's name and without what only debuggers read.
copy() {
    cp -fL "$1" "$2/$(basename "$1")"
    strip --strip-unneeded "$2/$(basename "$1")" 2>/dev/null || true
}

# needs FILE: the libraries that it needs, but for those of every system, and NCCL, which the machine has.
needs() {
    ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libnccl)\.so' || true
}
