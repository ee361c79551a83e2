#!/usr/bin/env bash
# wheel_libraries.sh CACHE: builds the libraries that the wheel contains against glibc 2.28: libuv, protobuf-c, cJSON, xxHash
# and OpenSSL as static libraries, UCX as shared ones with its modules for RDMA. zig, from PyPI's package ziglang, is the
# compiler, since it has the symbols of every glibc. Sources are the originals that Debian keeps, and UCX's repository;
# each is named by its hash. CACHE keeps them and what was built, by version: a second run takes seconds. deploy/wheel.sh
# calls it.
#
# Afterwards CACHE/prefix has lib/, include/ and licenses/, CACHE/bin has the compiler as cc, ar and so on, and
# CACHE/sources lists names and versions. DEBIAN_MIRROR and UCX_GIT name other places to get the same sources from.
set -euo pipefail
cache=$(mkdir -p "$1" && cd "$1" && pwd)
zig_version=0.17.1
glibc=2.28
jobs=${JOBS:-$(nproc)}
work=$cache/work
prefix=$cache/prefix
mkdir -p "$work" "$prefix/licenses" "$cache/bin" "$cache/tarballs"
export PATH="$cache/bin:$PATH"

# ---- The compiler ----------------------------------------------------------------------------------------------------

# wrapper NAME TEXT: a program of CACHE/bin.
wrapper() {
    printf '#!/bin/sh\n%s\n' "$2" >"$cache/bin/$1.new"
    chmod 755 "$cache/bin/$1.new"
    mv "$cache/bin/$1.new" "$cache/bin/$1"
}
if [ "$("$cache/venv/bin/python" -m ziglang version 2>/dev/null)" != $zig_version ]; then
    python3 -m venv "$cache/venv"
    "$cache/venv/bin/pip" install -q "ziglang==$zig_version"
fi
zig=$(echo "$cache"/venv/lib/python3*/site-packages/ziglang/zig)
export ZIG_GLOBAL_CACHE_DIR=$cache/zig ZIG_LOCAL_CACHE_DIR=$cache/zig
for tool in cc c++; do
    wrapper $tool "export ZIG_GLOBAL_CACHE_DIR='$cache/zig' ZIG_LOCAL_CACHE_DIR='$cache/zig'
exec '$zig' $tool -target x86_64-linux-gnu.$glibc -mcpu=x86_64 \"\$@\""
done
for tool in ar ranlib; do
    wrapper $tool "exec '$zig' $tool \"\$@\""
done
export CC=$cache/bin/cc CXX=$cache/bin/c++ AR=$cache/bin/ar RANLIB=$cache/bin/ranlib
# As the rest of Strait (cmake/StraitBuild.cmake).
export CFLAGS="-O2 -g0 -fPIC -fstack-protector-strong -fstack-clash-protection -fcf-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"
export CXXFLAGS="$CFLAGS"
export PKG_CONFIG_LIBDIR="$prefix/lib/pkgconfig"

# ---- Sources ---------------------------------------------------------------------------------------------------------

# Name, version, path below Debian's pool, SHA-256.
tarballs="
uthash     2.3.0  u/uthash/uthash_2.3.0.orig.tar.gz         e10382ab75518bad8319eb922ad04f907cb20cccb451a3aa980c9d005e661acc
libuv      1.50.0 libu/libuv1/libuv1_1.50.0.orig.tar.gz     ec9de6ecf2a780fd2afb3b007947d2cd57c3bb17f3b9e721a66774980d35cd4d
cjson      1.7.18 c/cjson/cjson_1.7.18.orig.tar.gz          3aa806844a03442c00769b83e99970be70fbef03735ff898f4811dd03b9f5ee5
xxhash     0.8.3  x/xxhash/xxhash_0.8.3.orig.tar.gz         aae608dfe8213dfd05d909a57718ef82f30722c392344583d3f39050c7f29a80
protobuf-c 1.5.1  p/protobuf-c/protobuf-c_1.5.1.orig.tar.gz 20d1dc257da96f8ddff8be4dd9779215bbd0a6069ed53bbe9de38fa7629be06b
openssl    3.5.7  o/openssl/openssl_3.5.7.orig.tar.gz       a8c0d28a529ca480f9f36cf5792e2cd21984552a3c8e4aa11a24aa31aeac98e8
"
ucx_version=1.22.0
ucx_commit=8a6b06fb880accbb933a79cda893883872c68d9d
: >"$cache/sources"
: >"$work/log"

# quietly COMMAND...: its output goes to a log, of which the end is printed when it fails.
quietly() {
    "$@" >>"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; echo "wheel_libraries.sh: failed: $*" >&2; exit 1; }
}

# is_built NAME VERSION: notes it as a part of the wheel and tells whether the cache has it.
is_built() {
    echo "$1 $2" >>"$cache/sources"
    built=$prefix/.$1-$2-zig$zig_version-glibc$glibc
    [ -e "$built" ] && return 0
    echo "building $1 $2"
    rm -rf "${work:?}/$1"
    mkdir "$work/$1"
    return 1
}

# unpack NAME: its source, in the current folder afterwards.
unpack() {
    local name version path sum
    read -r name version path sum <<<"$(grep "^$1 " <<<"$tarballs")"
    local tarball=$cache/tarballs/$name-$version.tar.gz
    [ -e "$tarball" ] || quietly curl -sSfL -o "$tarball" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}/pool/main/$path"
    echo "$sum  $tarball" | sha256sum --check --quiet || { echo "wheel_libraries.sh: $tarball is not what it should be" >&2; exit 1; }
    tar -xzf "$tarball" -C "$work/$1" --strip-components=1
    cd "$work/$1"
}

# finished NAME LICENSE: of a library that has been installed.
finished() {
    cp "$2" "$prefix/licenses/$1.txt"
    cd "$cache"
    rm -rf "${work:?}/$1"
    touch "$built"
}

# version NAME: that of the table.
version() {
    awk -v name="$1" '$1 == name { print $2 }' <<<"$tarballs"
}

# ---- Each library ----------------------------------------------------------------------------------------------------

with_cmake() { # OPTIONS...
    quietly cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=None -DBUILD_SHARED_LIBS=OFF -DCMAKE_INSTALL_PREFIX="$prefix" \
        -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_C_COMPILER_LAUNCHER= "$@"
    quietly cmake --build build --parallel "$jobs"
    quietly cmake --install build
}

if ! is_built uthash "$(version uthash)"; then
    unpack uthash
    mkdir -p "$prefix/include"
    cp src/*.h "$prefix/include/"
    finished uthash LICENSE
fi
if ! is_built libuv "$(version libuv)"; then
    unpack libuv
    with_cmake -DLIBUV_BUILD_SHARED=OFF -DBUILD_TESTING=OFF
    sed 's/-l:libuv.a/-luv/' "$prefix/lib/pkgconfig/libuv-static.pc" >"$prefix/lib/pkgconfig/libuv.pc" # by its usual name
    finished libuv LICENSE
fi
if ! is_built cjson "$(version cjson)"; then
    unpack cjson
    with_cmake -DENABLE_CJSON_TEST=OFF -DENABLE_CUSTOM_COMPILER_FLAGS=OFF
    finished cjson LICENSE
fi
if ! is_built xxhash "$(version xxhash)"; then
    unpack xxhash
    quietly make -j "$jobs" libxxhash.a AR="$AR"
    mkdir -p "$prefix/lib/pkgconfig"
    cp libxxhash.a "$prefix/lib/"
    cp xxhash.h xxh3.h "$prefix/include/"
    printf '%s\n' "Name: xxhash" "Description: hashes" "Version: $(version xxhash)" "Libs: -L$prefix/lib -lxxhash" \
        "Cflags: -I$prefix/include" >"$prefix/lib/pkgconfig/libxxhash.pc"
    finished xxhash LICENSE
fi
if ! is_built protobuf-c "$(version protobuf-c)"; then
    unpack protobuf-c
    [ -x configure ] || quietly autoreconf -fi
    quietly ./configure --prefix="$prefix" --disable-protoc --disable-shared --with-pic # the build machine has a protoc-c
    quietly make -j "$jobs"
    quietly make install
    finished protobuf-c LICENSE
fi
if ! is_built openssl "$(version openssl)"; then
    unpack openssl
    quietly ./Configure linux-x86_64 --prefix="$prefix" --libdir=lib --openssldir=/etc/ssl \
        no-shared no-tests no-apps no-docs no-module no-legacy no-engine no-comp
    quietly make -j "$jobs" build_libs
    quietly make install_dev
    finished openssl LICENSE.txt
fi

# ---- UCX -------------------------------------------------------------------------------------------------------------

# The libraries for RDMA are the host's, and opened where they are found: only headers and symbols are needed here, and
# those of an old version ask least of the host.
if [ ! -e "$cache/rdma/usr/include/infiniband/mlx5dv.h" ]; then
    mkdir -p "$cache/rdma/deb"
    (cd "$cache/rdma/deb" && quietly apt-get download -o APT::Sandbox::User=root libibverbs-dev libibverbs1 ibverbs-providers librdmacm-dev librdmacm1)
    for deb in "$cache"/rdma/deb/*.deb; do
        dpkg-deb -x "$deb" "$cache/rdma"
    done
    # One folder for all: --with-verbs wants include/ and lib/.
    ln -sfn "$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)" "$cache/rdma/usr/lib/here"
fi
if ! is_built ucx $ucx_version; then
    quietly git init -q "$work/ucx"
    cd "$work/ucx"
    quietly git fetch -q --depth 1 "${UCX_GIT:-https://github.com/openucx/ucx}" $ucx_commit
    quietly git checkout -q FETCH_HEAD
    [ "$(git rev-parse HEAD)" = $ucx_commit ]
    # zig's linker does not know -z interpose, by which UCX would come first where it is preloaded. Its memory hooks patch code.
    sed -i 's/-Xlinker -z -Xlinker interpose //' src/ucm/configure.m4
    sed -i 's/-Wall -Werror/-Wall/' config/m4/compiler.m4 # a newer clang warns of more
    quietly ./autogen.sh
    rdma=$cache/rdma/usr
    quietly ./contrib/configure-release --prefix="$prefix" --disable-static --with-pic --enable-mt --disable-doxygen-doc \
        --without-go --without-java --without-cuda --without-rocm --without-ze --without-gdrcopy --without-knem --without-xpmem \
        --without-fuse3 --without-bfd --with-verbs="$rdma" --with-mlx5 --with-rdmacm="$rdma" \
        LDFLAGS="-L$rdma/lib/here -Wl,--allow-shlib-undefined"
    for part in ucm ucs uct ucp; do # not the tools
        quietly make -C src/$part -j "$jobs"
        quietly make -C src/$part install
    done
    quietly make install-pkgconfigDATA
    finished ucx LICENSE
fi
