#!/usr/bin/env bash
# merge.sh [TARGET...]: renews corpora from themselves, build/fuzz/found and the seeds of seeds.py, after run.sh. What stays
# is the fewest small inputs that reach the same places; how often each is reached does not count, or they would be thousands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ $# -gt 0 ] || set -- http2_server http2_client grpc_frame block_reader messages text peer core
build=build/fuzz programs=build/asan/tests/fuzz
/usr/bin/python3 -B tests/fuzz/seeds.py "$build/seeds"
"$programs/fuzz_message_seeds" "$build/seeds/messages"
for target; do
	corpus=tests/fuzz/corpus/$target
	mkdir -p "$build/merged" "$build/found/$target" "$corpus"
	rm -rf "${build:?}/merged/$target"
	mkdir "$build/merged/$target"
	"$programs/fuzz_$target" -merge=1 -use_counters=0 -max_len=4096 "$build/merged/$target" "$corpus" \
		"$build/found/$target" "$build/seeds/$target" 2>"$build/merge-$target.log"
	# Inputs that once broke something have names of their own, and stay.
	find "$corpus" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
	cp "$build/merged/$target"/* "$corpus/"
	printf '%s: %d inputs, %d bytes\n' "$target" "$(find "$corpus" -type f | wc -l)" "$(cat "$corpus"/* | wc -c)"
done
