#!/bin/sh
# Puts the foreign clients that come as Go programs into a cache outside the tree, and prints its path.
# Exit code 77, with the reason, where that is not possible. Usage: fetch.sh [grpcurl]
set -eu

cache=${AMPD_CACHE:-$HOME/.cache/ampd}/bin
tool=${1:-grpcurl}

case $tool in
grpcurl) package=github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3 ;;
*) echo "fetch.sh: unknown tool $tool" >&2; exit 2 ;;
esac

if [ ! -x "$cache/$tool" ]; then
    if ! command -v go >/dev/null 2>&1; then
        echo "SKIPPED: $tool needs go to be built (package golang-go)"
        exit 77
    fi
    mkdir -p "$cache"
    if ! GOBIN=$cache GOFLAGS=-mod=mod go install "$package" >"$cache/$tool.log" 2>&1; then
        echo "SKIPPED: $tool cannot be fetched: $(tail -n 1 "$cache/$tool.log")"
        exit 77
    fi
fi
echo "$cache/$tool"
