#!/usr/bin/env bash
# path_with_space.sh SOURCE_DIR: in a folder whose path has a space the schema's generator finds its options, and what is made by it
# compiles.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree="$work/a folder"
mkdir "$tree"
# What the schema's library is made of; folders that are not there are not configured.
cp -r "$1/CMakeLists.txt" "$1/cmake" "$1/base" "$1/proto" "$tree"
{ cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug && cmake --build "$tree/build" --target ampd_proto; } >"$work/log" 2>&1 || {
	tail -n 20 "$work/log"
	exit 1
}
