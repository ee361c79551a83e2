# Fresh roots of distributions, for tests that install: sourced by packages.sh, wheel.sh and image.sh. Needs root.

# need_root_tools: mmdebstrap, or a reason to skip.
need_root_tools() {
    if [ "$(id -u)" -ne 0 ] || ! unshare --mount --pid --fork true 2>/dev/null; then
        echo "skipped: roots of other distributions need root and namespaces"
        exit 77
    fi
    install_packages mmdebstrap || { echo "skipped: no mmdebstrap"; exit 77; }
}

# make_root DIR SUITE [PACKAGES]: the smallest installation that has apt, with PACKAGES (separated by commas) beside it.
make_root() {
    local mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
    local options=(--quiet --variant=apt)
    [ -z "${3:-}" ] || options+=(--include="$3")
    if [ "$2" = noble ]; then
        mirror=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
        options+=(--components=main,universe "--keyring=$UBUNTU_KEYRING")
    fi
    mmdebstrap "${options[@]}" "$2" "$1" "$mirror"
    cp /etc/resolv.conf "$1/etc/resolv.conf"
    in_root "$1" apt-get update -qq
}

# in_root DIR COMMAND...: runs it in namespaces of its own, so that neither processes nor mounts are left.
in_root() {
    local root=$1
    shift
    # shellcheck disable=SC2016
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        unshare --mount --pid --fork --kill-child sh -c '
        root=$0
        mount -t proc proc "$root/proc"
        mount --bind /sys "$root/sys"
        mount -t tmpfs tmpfs "$root/dev/shm" 2>/dev/null || { mkdir -p "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"; }
        mkdir -p "$root/dev/pts"
        mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666,mode=0620
        [ -e "$root/dev/ptmx" ] || ln -s pts/ptmx "$root/dev/ptmx"
        for device in null zero urandom random full tty; do
            [ -e "$root/dev/$device" ] || : >"$root/dev/$device"
            [ -c "$root/dev/$device" ] || mount --bind "/dev/$device" "$root/dev/$device"
        done
        exec chroot "$root" "$@"' "$root" "$@"
}

# files_of DIR: all its files, without what apt, dpkg and ldconfig keep for themselves.
files_of() {
    (cd "$1" && find . -xdev -path ./proc -prune -o -path ./dev -prune -o -path ./run -prune -o -path ./var/cache -prune -o -path ./var/log -prune -o \
        -path ./var/lib/apt -prune -o -path ./var/lib/dpkg -prune -o -path ./tmp -prune -o \
        ! -name '*-' ! -path ./etc/ld.so.cache -print) | sort
}
