#!/usr/bin/env bash
# packages_inside.sh SCRIPT FOLDER: in a container of packages.sh: installs the packages of FOLDER, starts ampd as its user, runs
# SCRIPT until the server has applied a step, removes all, and compares what there is with what there was.
set -euo pipefail
script=$1 packages=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# For each wait; the goal, 60 s from the installation to the first step, is told and not asserted.
limit_s=120

# All paths but what dpkg and apt keep about themselves, and the data of ampd.
paths() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /root -o -path /var/cache -o \
		-path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/ampd -o -path "$packages" \) -prune -o -print |
		sort
}

wait_for() { # command...
	local begun=$SECONDS
	until "$@"; do
		[ $((SECONDS - begun)) -lt "$limit_s" ] || { echo "waited $limit_s s in vain for: $*" && return 1; }
		sleep 0.1
	done
}

has_applied() {
	ampctl -o csv models 2>/dev/null |
		awk -F , 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } $at["applied"] > 0 { found = 1 } END { exit !found }'
}

# What is there and was not; the users' file keeps a former version of itself when ampd's user is added.
left_but() { # extended regular expression of what may be
	paths | comm -13 /tmp/before - | grep -vE "^/etc/((passwd|group|g?shadow)-|\.pwd\.lock)$|$1" || true
}

paths >/tmp/before
begin_ms=$(date +%s%3N)
apt-get install -y -q --no-install-recommends "$packages"/*.deb
installed_ms=$(date +%s%3N)

getent passwd ampd
install -d -o ampd -g ampd -m 0700 /var/lib/ampd # systemd makes it
setpriv --reuid ampd --regid ampd --clear-groups ampd --data-dir /var/lib/ampd >/tmp/ampd.log 2>&1 &
server=$!
trap 'cat /tmp/ampd.log /tmp/script.log' ERR
wait_for ampctl ready >/dev/null 2>&1
cd /tmp
python3 "$script" >/tmp/script.log 2>&1 &
worker=$!
wait_for has_applied
end_ms=$(date +%s%3N)
awk -v all="$((end_ms - begin_ms))" -v install="$((installed_ms - begin_ms))" \
	'BEGIN { printf "seconds: %.1f from the installation to the first applied step, %.1f of them the installation; the goal is 60\n", all / 1000, install / 1000 }'
wait "$worker"
cat /tmp/script.log
# What Python knows of its packages.
python3 -c 'import importlib.metadata, ampd; assert importlib.metadata.version("ampd") == ampd.__version__; print(ampd.__file__)'
kill "$server"
wait "$server"

mapfile -t names < <(for package in "$packages"/*.deb; do dpkg-deb -f "$package" Package; done)
apt-get remove -y -q "${names[@]}"
left=$(left_but '^/etc/default/ampd$|^/etc/ampd(/ampd.conf)?$|^/var/lib/systemd')
[ -z "$left" ] || { echo "left when removed:" && echo "$left" && exit 1; }
mapfile -t names < <(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | awk '$1 == "rc" { print $2 }')
dpkg --purge "${names[@]}"
left=$(left_but '^$')
[ -z "$left" ] || { echo "left when purged:" && echo "$left" && exit 1; }
[ -d /var/lib/ampd ] || { echo "the data are gone" && exit 1; }
