#!/usr/bin/env bash
# wrong_options.sh SOURCE_DIR: the scripts refuse wrong options with exit code 2 at once, before they install or build.
set -euo pipefail
cd "$1"

refused() { # text, command...: in one line; a section ("== ...") would have begun
	local text=$1 output code=0
	shift
	output=$(timeout 10 "$@" 2>&1) || code=$?
	if [ "$code" != 2 ] || [[ $output != *"$text"* ]] || [[ $output == *"== "* ]] || [[ $output == *$'\n'* ]]; then
		echo "$*: exit code $code: $output" >&2
		exit 1
	fi
}

refused '"x" is not a number' ./quickstart.sh --steps x
refused 'not one of f16, bf16, f32' ./quickstart.sh --dtype f8
refused 'no option is called "--nope"; see --help' ./quickstart.sh --nope
refused 'no option is called "--dir"; see --help' ./quickstart.sh --dir x
refused '"f8" is not one of f32, bf16, f16' examples/charlm/run.sh --precision f8
refused 'no option is called "--nope"; see --help' examples/charlm/run.sh --nope
refused 'torch model package image' scripts/packages.sh
refused 'no suite "nope"' ./test.sh --long nope
refused 'no option is called "--nope"' ./test.sh --nope
refused 'there is no option "--nope"; see --help' deploy/up.sh --nope
refused '"two" is too much; see --help' deploy/up.sh ./one two
refused 'there is no "clutser": give cluster' deploy/up.sh clutser
refused 'there is no "clutser": give cluster' deploy/up.sh cluster clutser
refused 'ampd2 standby worker0' deploy/up.sh cluster --kill nobody
refused 'there is no option "--nope"; see --help' deploy/local-cluster.sh up --nope
refused 'give a command: up, hold' deploy/local-cluster.sh
refused '--shards: give a number from 1 to 64' deploy/local-cluster.sh up --shards 0
refused 'give the NAME of a process; see --help' deploy/local-cluster.sh kill
refused 'usage: tests/fuzz/run.sh SECONDS' tests/fuzz/run.sh --help
for script in bench/run.sh ./quickstart.sh examples/digits/run.sh examples/charlm/run.sh deploy/up.sh deploy/local-cluster.sh; do
	[[ $("$script" --help) == *"$(basename "$script")"* ]]
done
examples/digits/run.sh --check --steps 3 --dtype bf16
for suite in digits crash sim kernels casts curves model coverage attacks fuzz containers all; do
	tests/long.sh --check "$suite"
done
