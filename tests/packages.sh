#!/usr/bin/env bash
# packages.sh [SUITE...]: makes the packages, installs them in a fresh Debian 12 (bookworm; noble is Ubuntu 24.04, which needs
# UBUNTU_KEYRING, the file of its keys), uses and removes them, and looks for what is left. The RPM packages are installed
# there too, with rpm of this machine: their scripts and files are tried, not their names of dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
. tests/root.sh
need_root_tools
[ $# -gt 0 ] || set -- bookworm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -f dist/*.deb dist/*.rpm
nice -n 10 deploy/package.sh DEB RPM >"$work/log" 2>&1 || { tail -n 50 "$work/log"; exit 1; }
cuda=no
! ls dist/strait-cuda_* >/dev/null 2>&1 || cuda=yes
for deb in dist/*.deb; do
    # Which files belong to whom: the daemon's package needs neither compiler nor GPU.
    case $deb in
    */strait_*) not='\.so$|include/|pkgconfig|cmake|cuda|transport-nccl' ;;
    */strait-dev_*) not='/bin/|\.so\.0' ;;
    *) not='/bin/|include/|libstrait(-codec|-node|-coll|-checkpoint|-ep)?\.so' ;;
    esac
    if dpkg-deb -c "$deb" | awk '{ print $6 }' | grep -E "$not"; then
        echo "$deb has files of another package"
        exit 1
    fi
done

# daemon_answers ROOT: straitd with the installed configuration, as the user that the package made.
daemon_answers() {
    in_root "$1" sh -ec '
        systemd-tmpfiles --create strait.conf 2>/dev/null || install -d -o strait -g strait /run/strait
        setpriv --reuid=strait --regid=strait --clear-groups straitd --config /etc/strait/straitd.conf 2>/tmp/log &
        daemon=$!
        for attempt in $(seq 100); do ! grep -q msg=ready /tmp/log || break; sleep 0.1; done
        strait status >/dev/null || { cat /tmp/log; exit 1; }
        kill $daemon
        wait $daemon'
}

# is_clean ROOT: no user, no file of a name like ours.
is_clean() {
    local left
    left=$(grep -H strait "$1/etc/passwd" "$1/etc/group" || true
        find "$1" -xdev -name '*strait*' ! -path '*/var/log/*' ! -path "$1/tmp/*")
    [ -z "$left" ] || { printf 'left behind:\n%s\n' "$left"; return 1; }
}

try_debs() { # ROOT
    local root=$1
    cp dist/*.deb "$root/tmp/"
    echo "-- the daemon's package alone"
    in_root "$root" sh -c 'apt-get install -qq -y --no-install-recommends /tmp/strait_*.deb' >/dev/null
    in_root "$root" sh -ec 'getent passwd strait >/dev/null; getent group strait >/dev/null
        test -z "$(find /etc/systemd -name "straitd*")"
        test -z "$(find /usr/lib -name "libcuda*")"
        straitd --version && strait --version && strait demo'
    [ ! -e "$root/run/strait/straitd.sock" ] # nobody has started it
    daemon_answers "$root"

    echo "-- all of them; a configuration that was changed"
    in_root "$root" sh -c 'echo "# changed" >>/etc/strait/straitd.conf
        apt-get install -qq -y --no-install-recommends --reinstall -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold /tmp/strait*.deb' >/dev/null
    grep -q "# changed" "$root/etc/strait/straitd.conf"
    in_root "$root" sh -ec 'test -z "$(ldd /usr/bin/strait* /usr/lib/*/libstrait*.so.0 | grep "not found")"
        strait demo >/dev/null
        bash -n /usr/share/bash-completion/completions/strait
        test -s /usr/share/zsh/vendor-completions/_straitd && test -s /usr/share/fish/vendor_completions.d/strait.fish'
    [ $cuda = no ] || in_root "$root" sh -c 'test -e /usr/lib/*/libstrait-cuda.so.0'
    local debs=(dist/*.deb)
    [ "$(grep -l '^License: Apache-2.0' "$root"/usr/share/doc/strait*/copyright | wc -l)" -eq ${#debs[@]} ]

    echo "-- removed, and purged"
    in_root "$root" sh -c 'printf secret >/etc/strait/secret; apt-get remove -qq -y strait' >/dev/null
    test -e "$root/etc/strait/secret"
    in_root "$root" sh -c 'dpkg --purge strait $(cd /tmp && echo strait*.deb | tr " " "\n" | sed "s/_.*//")' >/dev/null 2>&1
    is_clean "$root"
}

try_rpms() { # ROOT: with the libraries that the other packages brought
    local root=$1
    in_root "$root" sh -c 'echo /usr/lib64 >/etc/ld.so.conf.d/lib64.conf' # Debian does not look there
    rpm --root "$root" --nodeps --install dist/*.rpm 2>/dev/null
    in_root "$root" sh -ec 'strait demo >/dev/null; test -z "$(find /etc/systemd -name "straitd*")"'
    daemon_answers "$root"
    echo "# changed" >>"$root/etc/strait/straitd.conf"
    rpm --root "$root" --nodeps --install --replacepkgs dist/strait-0*.rpm 2>/dev/null
    grep -q "# changed" "$root/etc/strait/straitd.conf"
    # shellcheck disable=SC2046
    rpm --root "$root" --erase strait-devel strait $([ $cuda = no ] || echo strait-cuda) 2>/dev/null
    rm -f "$root/etc/strait/straitd.conf.rpmsave" "$root/etc/ld.so.conf.d/lib64.conf"
    rmdir "$root/etc/strait" 2>/dev/null || true
    in_root "$root" userdel strait # RPM leaves users
    # RPM's database, and folders that packages of an RPM distribution own.
    rm -rf "$root/root/.rpmdb" "$root/var/lib/rpm"
    rmdir "$root"/usr/lib/sysusers.d "$root"/usr/lib64/{cmake,pkgconfig}
    rmdir "$root"/usr/share/zsh{/site-functions,} "$root"/usr/share/fish{/vendor_completions.d,}
    is_clean "$root"
}

for suite; do
    echo "== $suite"
    root=$work/$suite
    make_root "$root" "$suite" adduser # which stays when a package that wanted it goes
    files_of "$root" >"$work/before"
    try_debs "$root"
    echo "-- RPM"
    try_rpms "$root"
    in_root "$root" apt-get autoremove -qq -y --purge >/dev/null 2>&1
    files_of "$root" >"$work/after"
    diff "$work/before" "$work/after" || { echo "$suite: these files differ from before"; exit 1; }
    rm -rf "$root"
done
echo "packages: installed, used and removed without a trace"
