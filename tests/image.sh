#!/usr/bin/env bash
# image.sh: builds the image without a container engine and runs it as a container would, under chroot: as its user, the root
# read-only, the commands of both nodes of deploy/compose.yaml.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
. tests/root.sh
need_root_tools
install_packages python3-yaml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ls dist/strait_*.deb >/dev/null 2>&1 || nice -n 10 deploy/package.sh DEB >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
nice -n 10 deploy/image.sh "$work/image.tar" >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }

# Unpacked as an engine does: every blob is what its name says.
/usr/bin/python3 - "$work" <<'PYTHON'
import hashlib, json, subprocess, sys, tarfile
from pathlib import Path
import yaml

work = Path(sys.argv[1])
tarfile.open(work / "image.tar").extractall(work / "oci")
def blob(entry):
    data = (work / "oci/blobs" / entry["digest"].replace(":", "/")).read_bytes()
    assert "sha256:" + hashlib.sha256(data).hexdigest() == entry["digest"] and len(data) == entry["size"]
    return data
(entry,) = json.loads((work / "oci/index.json").read_text())["manifests"]
manifest = json.loads(blob(entry))
config = json.loads(blob(manifest["config"]))
(work / "layer.tar.gz").write_bytes(blob(manifest["layers"][0]))
(work / "root").mkdir()
subprocess.run(["tar", "-xzf", work / "layer.tar.gz", "-C", work / "root", "--numeric-owner"], check=True)
run = config["config"]
assert run["User"] == "7350:7350" and "/run/strait" in run["Volumes"], run
nodes = yaml.safe_load(Path("deploy/compose.yaml").read_text())["services"]
assert len(nodes) == 2
for name, node in nodes.items():
    assert node["read_only"] and node["cap_drop"] == ["ALL"]
    arguments = run["Entrypoint"] + node["command"]
    (work / name).write_text("\n".join(arguments) + "\n")
print("image:", (work / "image.tar").stat().st_size // 1000000, "MB;", *run["Entrypoint"], *run["Cmd"])
PYTHON
root=$work/root
[ "$(stat -c '%u %a' "$root/run/strait")" = "7350 755" ]
mkdir -p "$root/run/secrets"
head -c 32 /dev/urandom >"$root/run/secrets/strait"
chown 7350 "$root/run/secrets/strait"
chmod 600 "$root/run/secrets/strait"
printf '127.0.0.1 localhost\n127.0.1.1 node-a\n127.0.1.2 node-b\n' >"$root/etc/hosts"

# Mounts and processes end with the namespaces.
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child sh -ec '
    root=$1 work=$2
    as_user="setpriv --reuid=7350 --regid=7350 --clear-groups --no-new-privs --bounding-set=-all"
    mount --bind "$root" "$root"
    mkdir -p "$root/proc" "$root/sys" "$root/dev"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/dev"
    for device in null zero urandom random; do
        : >"$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir "$root/dev/shm"
    mount --bind /sys "$root/sys"
    mount -o remount,bind,ro "$root"
    for node in node-a node-b; do
        mount -t tmpfs tmpfs "$root/run/strait" -o uid=7350,gid=7350 # a volume for each
        set --
        while read -r argument; do set -- "$@" "$argument"; done <"$work/$node"
        chroot "$root" $as_user "$@" 2>"$work/$node.log" &
        daemons="${daemons:-} $!"
        for attempt in $(seq 100); do ! grep -q msg=ready "$work/$node.log" || break; sleep 0.1; done
        chroot "$root" $as_user strait status >/dev/null || { cat "$work/$node.log"; exit 1; }
    done
    if touch "$root/usr/file" 2>/dev/null; then echo "the root can be written"; exit 1; fi
    mount -t tmpfs tmpfs "$root/tmp" # what demo makes
    chroot "$root" $as_user strait demo | tail -n 1
    kill $daemons
    wait' sh "$root" "$work"
echo "image: both nodes of compose.yaml ran"
