#!/usr/bin/env bash
# From a bare Debian 12 machine to a trained network: installs what is missing, builds, and trains the digits job with
# one ampd server and two workers, by default in fp16. Everything stays in this folder's build/.
#
#   quickstart.sh [--steps N] [--dtype f16|bf16|f32] [--seed S] [--hidden H]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [[ ${1-} == --help || ${1-} == -h ]]; then
	sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
	exit 0
fi
# Options that are wrong are refused now, not after the build; the folders and the port are this script's own.
for option in "$@"; do
	[[ $option != --* || $option =~ ^--(steps|dtype|seed|hidden)$ ]] || {
		echo "quickstart.sh: no option is called \"$option\"; see --help" >&2
		exit 2
	}
done
examples/digits/run.sh --check "$@" 2>&1 | sed 's/^run\.sh: /quickstart.sh: /' >&2 || exit 2

echo "== packages"
scripts/packages.sh run python build
echo "== build (build/release; some minutes the first time; how far it is: tail -f build/quickstart-build.log)"
mkdir -p build
log=build/quickstart-build.log
cmake --preset release >"$log" 2>&1 || { cat "$log" && exit 1; }
cmake --build --preset release --target ampd ampctl digits python_package >>"$log" 2>&1 || { tail -n 40 "$log" && exit 1; }

dir=build/quickstart
rm -rf "$dir"
echo "== training: 1 ampd, 2 workers (server's log: $dir/ampd.log)"
examples/digits/run.sh --bin build/release/bin --dir "$dir" --port 0 --picture "$@"
echo "checkpoints: $(cd "$dir/data" && find . -name '*.safetensors' | sort | tail -n 1 | sed "s|^\.|$dir/data|")"
