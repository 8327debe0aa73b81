#!/usr/bin/env bash
# containers.sh: deploy/up.sh, small and as a cluster; a cluster one of whose shards, workers or etcds is killed ends with the bits
# of one that is left alone. Builds the images: a quarter of an hour on two cores, most of it the first time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! docker version >/dev/null 2>&1; then
	echo "SKIPPED: containers: docker does not answer (package docker.io)"
	exit 77
fi
out=$(mktemp -d "${TMPDIR:-/tmp}/ampd-containers.XXXXXX")
trap 'rm -rf "$out"' EXIT
failed=0

ends_with_0() { # name, command...
	local name=$1
	shift
	if "$@" >"$out/log" 2>&1; then
		echo "[       OK ] $name"
	else
		cat "$out/log"
		echo "[  FAILED  ] $name"
		failed=1
	fi
}

ends_with_0 one_ampd_and_two_workers deploy/up.sh "$out/small"
ends_with_0 a_cluster deploy/up.sh cluster "$out/calm"
grep -h 'healthy after' "$out/log" || true
for victim in shard-0 shard-1 worker2 etcd0; do
	ends_with_0 "a_cluster_that_loses_$victim" deploy/up.sh cluster --kill "$victim" "$out/$victim"
	grep -hE 'healthy after|killing|has its place' "$out/log" || true
	ends_with_0 "the_bits_are_the_same_without_$victim" cmp "$out/calm" "$out/$victim"
done
exit "$failed"
