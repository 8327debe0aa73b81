#!/usr/bin/env bash
# install_amp.sh BUILD COMPILER [FLAGS]: installs the component "amp" of a build, moves the install, and builds a program
# outside the tree against it, by find_package and by pkg-config, and runs it. FLAGS are those of the build, since a
# library with a sanitizer needs it in the program too.
set -euo pipefail
build=$1 compiler=$2 flags=${3:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's/^project(ampd VERSION \([0-9.]*\) .*/\1/p' "$here/../../CMakeLists.txt")
if ! command -v pkg-config >/dev/null; then
	echo "SKIPPED: pkg-config is not installed"
	exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --component amp --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
cp -r "$here/outside" "$work/source"

echo "find_package"
cmake -S "$work/source" -B "$work/cmake" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_C_FLAGS="$flags" \
	-DCMAKE_PREFIX_PATH="$work/prefix" -DWANTED="$version" >/dev/null
cmake --build "$work/cmake" >/dev/null
"$work/cmake/outside"

echo "pkg-config"
pc=$(find "$work/prefix" -name amp.pc)
export PKG_CONFIG_PATH=${pc%/*}
pkg-config --exact-version="$version" amp
# shellcheck disable=SC2046,SC2086 # lists of flags
"$compiler" -std=c17 -Wall -Wextra -Werror $flags $(pkg-config --cflags amp) "$work/source/main.c" -o "$work/outside" \
	$(pkg-config --libs amp)
"$work/outside"

echo "docs/amp.md"
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$here/../../docs/amp.md" >"$work/page.c"
# shellcheck disable=SC2046,SC2086 # lists of flags
"$compiler" -std=c17 -Wall -Wextra -Werror $flags $(pkg-config --cflags amp) "$work/page.c" -o "$work/page" $(pkg-config --libs amp)
"$work/page"

# Every installed header stands alone.
headers=$(cd "$work/prefix/include/ampd" && find . -name '*.h' | sed 's|^\./||')
[ -n "$headers" ]
for header in $headers; do
	# shellcheck disable=SC2046
	echo "#include \"$header\"" | "$compiler" -std=c17 -Wall -Wextra -Werror $(pkg-config --cflags amp) -fsyntax-only -xc -
done
echo "all headers stand alone"
