#!/usr/bin/env bash
# containers.sh: deploy/up.sh, small and as a cluster; a cluster one of whose shards, workers or etcds is killed ends with the bits
# of one that is left alone. Builds the images: a quarter of an hour on two cores, most of it the first time.
# shellcheck disable=SC2317 # ends_with_0 calls what it is given
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

# As README.md and docs/install.md have them: a server's data and a result in the tree. They would be models in an image, and each
# change of them a build of a quarter of an hour.
keeps_what_runs_leave_out_of_the_image() {
	local image
	mkdir "$out/tree" && git archive HEAD | tar -C "$out/tree" -x && cp .dockerignore "$out/tree"
	mkdir "$out/tree/ampd-data" && touch "$out/tree/ampd-data/ampd.db" "$out/tree/digits.safetensors"
	image=$(printf 'FROM debian:bookworm-slim\nCOPY . /src\n' | docker build -q -f - "$out/tree") || return 1
	docker run --rm "$image" ls -A /src >"$out/sent"
	docker rmi "$image" >/dev/null
	grep -qx CMakeLists.txt "$out/sent" && ! grep -E '^ampd-data$|safetensors' "$out/sent"
}

ends_with_0 a_debian_is_there deploy/base-image.sh
ends_with_0 what_runs_leave_in_the_tree_is_not_sent_to_docker keeps_what_runs_leave_out_of_the_image
ends_with_0 one_ampd_and_two_workers deploy/up.sh "$out/small"
ends_with_0 a_cluster deploy/up.sh cluster "$out/calm"
grep -h 'healthy after' "$out/log" || true
for victim in shard-0 shard-1 worker2 etcd0; do
	ends_with_0 "a_cluster_that_loses_$victim" deploy/up.sh cluster --kill "$victim" "$out/$victim"
	grep -hE 'healthy after|killing|has its place' "$out/log" || true
	ends_with_0 "the_bits_are_the_same_without_$victim" cmp "$out/calm" "$out/$victim"
done
exit "$failed"
