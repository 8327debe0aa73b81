#!/bin/sh
# Puts the foreign programs that come as Go packages into a cache outside the tree, and prints the path of the one asked for.
# Exit code 77, with the reason, where that is not possible. Usage: fetch.sh [TOOL]   (default grpcurl; "all" builds each)
set -eu

cache=${AMPD_CACHE:-$HOME/.cache/ampd}/bin
tool=${1:-grpcurl}

# connectconformance: v1.0.7 requires connectrpc.com/connect/v2, which the module proxy refuses (403).
case $tool in
all) ;;
grpcurl) package=github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3 ;;
interop_client) package=google.golang.org/grpc/interop/client@v1.85.0 ;;
connectconformance) package=connectrpc.com/conformance/cmd/connectconformance@v1.0.6 ;;
h2spec) package=github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible ;;
ghz) package=github.com/bojand/ghz/cmd/ghz@v0.121.0 ;;
grpc-health-probe) package=github.com/grpc-ecosystem/grpc-health-probe@v0.4.37 ;;
protoc-gen-go) package=google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11 ;;
protoc-gen-go-grpc) package=google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2 ;;
*) echo "fetch.sh: unknown tool $tool" >&2; exit 2 ;;
esac

if [ "$tool" = all ]; then
    for each in grpcurl interop_client connectconformance h2spec ghz grpc-health-probe protoc-gen-go protoc-gen-go-grpc; do
        sh "$0" "$each" || [ $? -eq 77 ]
    done
    exit 0
fi

# grpc-health-probe: the checksum database does not know it, and the module proxy refuses its list of versions, which
# `go install` asks for. So it is built as a requirement of an empty module, and its own checksum stands here.
probe_sum='github.com/grpc-ecosystem/grpc-health-probe v0.4.37 h1:x8IIa8JfqiXpBX3xtmm3jz5b9YMq4Lpc9/b+ZAfzRZI=
github.com/grpc-ecosystem/grpc-health-probe v0.4.37/go.mod h1:uKUtQKoBUvaI4Ez1jaLCHxFYYYoYn/FYkqNgl+8hADw='

build() { # folder
    if [ "$tool" != grpc-health-probe ]; then
        GOBIN=$1 GOFLAGS=-mod=mod go install "$package"
        return
    fi
    module=$(mktemp -d)
    (
        cd "$module"
        go mod init empty
        go mod edit "-require=$package"
        printf '%s\n' "$probe_sum" >go.sum
        GONOSUMDB=${package%@*} GOFLAGS=-mod=mod go build -o "$1/$tool" "${package%@*}"
    ) || return 1
    rm -rf "$module"
}

if [ ! -x "$cache/$tool" ]; then
    if ! command -v go >/dev/null 2>&1; then
        echo "SKIPPED: $tool needs go to be built (package golang-go)"
        exit 77
    fi
    mkdir -p "$cache"
    # One build at a time, of tests that run side by side: the next one has the program, or what is common to all (Go's own library,
    # gRPC) from Go's cache. Five minutes for those before; after them side by side, which only takes more of the processor.
    exec 9>"$cache/lock"
    flock -w 300 9 || true
fi
if [ ! -x "$cache/$tool" ]; then
    # One folder for each build: go names the program after its package.
    fresh=$(mktemp -d "$cache/$tool.XXXXXX")
    tries=1 # of a network that may be away for a moment
    until build "$fresh" >"$cache/$tool.log" 2>&1; do
        [ $tries -lt 3 ] || break
        tries=$((tries + 1))
        sleep 5
    done
    if [ -z "$(ls "$fresh")" ]; then
        rm -rf "$fresh"
        tail -n 1 "$cache/$tool.log" >&2
        echo "SKIPPED: $tool cannot be fetched or built; the reason is in $cache/$tool.log"
        exit 77
    fi
    mv "$fresh"/* "$cache/$tool"
    rm -rf "$fresh"
fi
echo "$cache/$tool"
