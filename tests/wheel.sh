#!/usr/bin/env bash
# wheel.sh: builds the wheel, installs it in a fresh environment of a Debian 12 that has no compiler and no library of its
# own for it, and uses it: the demo, two daemons over TCP and over UCX with the Python client, an embedded one. What is
# installed must be gone when it is uninstalled.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
. tests/root.sh
need_root_tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nice -n 10 deploy/wheel.sh "$work/wheel" >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
wheel=$(echo "$work"/wheel/strait-*-manylinux_2_28_x86_64.whl)
[ "$(stat -c %s "$wheel")" -lt 40000000 ]
# auditwheel looks also at the host's libraries for RDMA; here all that the wheel itself asks of glibc.
mkdir "$work/unpacked"
python3 -m zipfile -e "$wheel" "$work/unpacked"
newest=$(find "$work/unpacked" -type f \( -name '*.so.0' -o -path '*/bin/*' \) -exec readelf -V {} + | grep -o 'GLIBC_2\.[0-9.]*' | sort -Vu | tail -n 1)
echo "newest symbols of glibc: $newest, $(($(stat -c %s "$wheel") / 1000000)) MB"
[ "$(printf '%s\n' "$newest" GLIBC_2.28 | sort -V | tail -n 1)" = GLIBC_2.28 ]
tests/hardening.sh "$work"/unpacked/strait/bin/* "$work"/unpacked/strait/lib/*

root=$work/root
make_root "$root" bookworm python3-venv
[ -z "$(find "$root" -name 'libuv*' -o -name 'libucp*' -o -name 'libibverbs*' -o -name 'libprotobuf-c*' -o -name 'crt1.o')" ]
mkdir "$root/tmp/wheels"
cp "$wheel" "$root/tmp/wheels/"
cp tests/wheel_service.py "$root/tmp/"
python3 -m venv "$work/pip"
"$work/pip/bin/pip" download -q --python-version 3.11 --only-binary=:all: --platform manylinux_2_28_x86_64 \
    --platform manylinux2014_x86_64 -d "$root/tmp/wheels" numpy
in_root "$root" sh -c 'python3 -m venv /opt/venv && /opt/venv/bin/pip install -q --no-index --find-links /tmp/wheels numpy'
files_of "$root" | grep -v __pycache__ >"$work/before"
in_root "$root" sh -ec '/opt/venv/bin/pip install -q --no-index --find-links /tmp/wheels strait
    PATH=/opt/venv/bin:$PATH
    strait demo
    python -B /tmp/wheel_service.py tcp
    python -B /tmp/wheel_service.py ucx
    python -B -c "import strait; print(strait.variants())"
    python -B -c "import ctypes, pathlib, strait
for library in pathlib.Path(strait.__file__).parent.glob(\"lib/*.so.0\"): ctypes.CDLL(str(library), 2)" # RTLD_NOW; without a GPU
    libs=$(echo /opt/venv/lib/python3*/site-packages/strait.libs)
    ldd $libs/ucx/libuct_ib_mlx5.so.0 | grep -q "libibverbs.so.1 => not found"'
# A host with a device for RDMA, but without the libraries: the daemon says that it goes by TCP.
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child sh -ec '
    mount -t proc proc "$0/proc"
    mount -t tmpfs tmpfs "$0/sys"
    mkdir -p "$0/sys/class/infiniband/mlx5_0/ports/1"
    echo "4: ACTIVE" >"$0/sys/class/infiniband/mlx5_0/ports/1/state"
    timeout --preserve-status 3 chroot "$0" /opt/venv/bin/straitd --socket /tmp/socket --listen 127.0.0.1:0 --metrics "" 2>"$0/tmp/log"' "$root"
grep -q 'msg="RDMA is not used".*error="libibverbs.so.1 is not installed"' "$root/tmp/log" || { cat "$root/tmp/log"; exit 1; }
grep -q 'msg=transports usable="shm,tcp"' "$root/tmp/log" || { cat "$root/tmp/log"; exit 1; }
# With the host's libraries for RDMA, UCX's modules load.
in_root "$root" sh -ec 'apt-get install -qq -y --no-install-recommends ibverbs-providers librdmacm1 >/dev/null 2>&1
    PATH=/opt/venv/bin:$PATH
    libs=$(echo /opt/venv/lib/python3*/site-packages/strait.libs)
    test -z "$(ldd $libs/*.so.0 $libs/ucx/*.so.0 | grep "not found")"
    python -B -c "import ctypes, sys
for module in sys.argv[1:]: ctypes.CDLL(module)" $libs/libstrait-ucp.so.0 $libs/ucx/libuct_ib.so.0 $libs/ucx/libuct_ib_mlx5.so.0
    python -B /tmp/wheel_service.py ucx
    apt-get purge -qq -y --autoremove ibverbs-providers librdmacm1 >/dev/null 2>&1
    /opt/venv/bin/pip uninstall -q -y strait'
files_of "$root" | grep -v __pycache__ >"$work/after"
diff "$work/before" "$work/after" || { echo "the wheel left these"; exit 1; }
echo "wheel: installed, used and removed without a trace"
