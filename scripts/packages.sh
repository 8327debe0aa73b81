#!/usr/bin/env bash
# packages.sh SECTION...: installs the packages of these sections of deploy/packages.txt that are missing.
#
# Nothing is asked of the network when nothing is missing. Says what it does. Exit code: 0 all are there, 1 they
# could not be installed, 2 wrong usage.
set -euo pipefail

list=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/deploy/packages.txt
# Another apt may be running (unattended upgrades on a fresh machine): wait for its lock at most this long.
lock_timeout_s=120

names_of() {
    awk -v section="[$1]" '
        /^[[:space:]]*(#|$)/ { next }
        /^\[/ { inside = ($1 == section); found = found || inside; next }
        inside { print $1 }
        END { exit !found }' "$list"
}

is_installed() {
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

if [[ $# -eq 0 ]]; then
    echo "usage: packages.sh SECTION..., the sections of deploy/packages.txt: $(sed -n 's/^\[\(.*\)\]$/\1/p' "$list" | paste -sd " ")" >&2
    exit 2
fi

wanted=()
for section in "$@"; do
    if ! names=$(names_of "$section"); then
        echo "packages.sh: deploy/packages.txt has no section [$section]" >&2
        exit 2
    fi
    mapfile -t -O "${#wanted[@]}" wanted <<<"$names"
done

if ! command -v dpkg-query >/dev/null; then
    echo "packages: this is not a Debian machine; install the equivalents of: ${wanted[*]}" >&2
    exit 1
fi

missing=()
for name in "${wanted[@]}"; do
    is_installed "$name" || missing+=("$name")
done
if [[ ${#missing[@]} -eq 0 ]]; then
    echo "packages: nothing to install for: $*"
    exit 0
fi
if [[ $(id -u) -ne 0 ]] && ! command -v sudo >/dev/null; then
    echo "packages: not root and there is no sudo; as root, run: apt-get install ${missing[*]}" >&2
    exit 1
fi

# etcd and Prometheus are wanted for their programs, not as services of this machine. What would start a service asks this
# file first; a machine that has one of its own keeps it.
policy=/usr/sbin/policy-rc.d
has_service() {
    [[ " ${missing[*]} " == *" etcd-server "* || " ${missing[*]} " == *" prometheus "* ]]
}
# Those that the machine does not start already.
unwanted_services=()
for unit in etcd prometheus prometheus-node-exporter; do
    if command -v systemctl >/dev/null && ! systemctl --quiet is-enabled "$unit" 2>/dev/null; then
        unwanted_services+=("$unit")
    fi
done
allow_services() {
    as_root rm -f "$policy"
    [[ ${#unwanted_services[@]} -eq 0 ]] || as_root systemctl disable --quiet "${unwanted_services[@]}" 2>/dev/null || true
}
if has_service && [[ ! -e $policy ]]; then
    trap allow_services EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 0755 "$policy"
fi

echo "packages: installing ${#missing[@]} for $*: ${missing[*]}"
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o "DPkg::Lock::Timeout=$lock_timeout_s")
# A stale index still names most packages, so a failed update is reported, and the installation is tried.
as_root "${apt[@]}" update || echo "packages: apt-get update failed; trying with the index at hand" >&2
as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" || {
    echo "packages: apt-get could not install: ${missing[*]}" >&2
    exit 1
}
