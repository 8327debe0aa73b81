#!/bin/sh
# h2spec with its strict cases, under a path that answers 200. Usage: h2spec.sh H2SPEC_SERVER
set -eu

here=$(dirname "$0")
# shellcheck source=start.sh
. "$here/start.sh"
need h2spec

start "$1"
timeout 600 "$tool" -h 127.0.0.1 -p "$port" -P /h2spec/any --strict -o 2 -j "$work/report.xml" >"$work/out" 2>&1 || true
[ -s "$work/report.xml" ] || { tail -n 5 "$work/out"; exit 1; }
/usr/bin/python3 "$here/h2spec_report.py" "$work/report.xml" "$here/exceptions.txt"
