#!/usr/bin/env bash
# build_only.sh SOURCE_DIR: test.sh --build-only installs the packages of the build and its programs, and not those of the tests.
set -euo pipefail
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir "$tree/scripts"
cp "$1/test.sh" "$tree"
printf '#!/bin/sh\necho "$*" >asked\nexit 1\n' >"$tree/scripts/packages.sh"
chmod 0755 "$tree/scripts/packages.sh"

asks() { # sections, options...
	local sections=$1
	shift
	"$tree/test.sh" "$@" >/dev/null 2>&1 || true
	[ "$(<"$tree/asked")" = "$sections" ] || { echo "test.sh $*: installs $(<"$tree/asked"), not $sections" >&2 && exit 1; }
}

asks 'run python build' --build-only
asks 'run build test cluster cross torch'
