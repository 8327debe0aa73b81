#!/usr/bin/env bash
# wrong_options.sh SOURCE_DIR: the scripts refuse wrong options with exit code 2 at once, before they install or build.
set -euo pipefail
cd "$1"

refused() { # text, command...: a section ("== ...") would have begun
	local text=$1 output code=0
	shift
	output=$(timeout 10 "$@" 2>&1) || code=$?
	if [ "$code" != 2 ] || [[ $output != *"$text"* ]] || [[ $output == *"== "* ]]; then
		echo "$*: exit code $code: $output" >&2
		exit 1
	fi
}

refused '"x" is not a number' ./quickstart.sh --steps x
refused 'none of f16, bf16, f32' ./quickstart.sh --dtype f8
refused 'no option is called "--nope"' ./quickstart.sh --nope
refused 'no suite "nope"' ./test.sh --long nope
refused 'no option is called "--nope"' ./test.sh --nope
refused 'up.sh cluster [--kill' deploy/up.sh --nope
refused 'up.sh cluster [--kill' deploy/up.sh cluster --kill nobody
refused 'there is no option "--nope"' deploy/local-cluster.sh up --nope
examples/digits/run.sh --check --steps 3 --dtype bf16
for suite in digits crash sim kernels casts curves model coverage attacks fuzz containers all; do
	tests/long.sh --check "$suite"
done
