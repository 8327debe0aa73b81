#!/usr/bin/env bash
# package.sh [OUT]: Debian 12 packages and a wheel of this tree, in the folder OUT (build/packages).
#
# Installs what it takes from Debian (sections [build] and [package] of packages.txt), builds a copy of the tree by Debian's
# own tools, needs no root for that, and ends with lintian. What goes into which package is in deploy/debian: control has a
# paragraph for each, PACKAGE.install its files. The version is that of CMakeLists.txt. The same commit gives the same bytes;
# what is not committed is packed too. From the environment: PACKAGE_WORK, the folder (build) where the copy is made, in
# package, and removed; PACKAGE_VERSION, a version in place of that of CMakeLists.txt. Exit code: 0 all are there and lintian has found no error, 1 something failed, 2 wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=${PACKAGE_WORK:-$root/build}/package
# Lines of the log that a failure shows.
tail_lines=40

if [[ $# -gt 1 || ${1-} == -* ]]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
out=$(realpath -m "${1:-$root/build/packages}")

say() {
    echo "package: $*"
}

# What git has, and what it does not ignore: as the tree is now, but for the times, which a package would keep.
copy_tree() { # FOLDER
    mkdir -p "$1"
    git -C "$root" ls-files -z --cached --others --exclude-standard --deduplicate |
        while IFS= read -r -d '' file; do
            if [[ -e $root/$file || -L $root/$file ]]; then printf '%s\0' "$file"; fi
        done | tar -C "$root" --no-recursion --null -T - --mtime "@$SOURCE_DATE_EPOCH" -c | tar -C "$1" -x
}

write_changelog() { # VERSION
    printf 'ampd (%s) bookworm; urgency=medium\n\n  * Built of %s.\n\n -- %s  %s\n' "$1" \
        "$(git -C "$root" describe --always --dirty --abbrev=12 --exclude '*')" \
        "$(sed -n 's/^Maintainer: //p' "$root/deploy/debian/control")" \
        "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

logged() { # COMMAND...
    if ! "$@" >>"$work/log.txt" 2>&1; then
        tail -n "$tail_lines" "$work/log.txt" >&2
        say "failed: $*; the whole output is in $work/log.txt" >&2
        exit 1
    fi
}

"$root/scripts/packages.sh" build package

version=${PACKAGE_VERSION:-$(sed -n 's/^project(ampd VERSION \([0-9.]*\) .*/\1/p' "$root/CMakeLists.txt")}
[[ -n $version ]] || { say "CMakeLists.txt names no version" >&2 && exit 1; }
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
# The symbols of a stripped program would be packages of their own.
export SOURCE_DATE_EPOCH DEB_BUILD_OPTIONS="noautodbgsym ${DEB_BUILD_OPTIONS-}"
# What the environment asks of other builds. Objects of a compiler's cache may come from another folder.
unset CC CFLAGS CPPFLAGS LDFLAGS CMAKE_C_COMPILER_LAUNCHER CMAKE_GENERATOR CMAKE_BUILD_TYPE
export CCACHE_DISABLE=1

tree=$work/ampd-$version
rm -rf "$work"
copy_tree "$tree"
sed -i "s/^project(ampd VERSION [0-9.]* /project(ampd VERSION $version /" "$tree/CMakeLists.txt"
cp -RL "$root/deploy/debian" "$tree/debian"
write_changelog "$version" >"$tree/debian/changelog"

say "building ampd $version; $work/log.txt has the output"
cd "$tree"
logged dpkg-buildpackage --build=binary --unsigned-changes --no-sign -Jauto
logged /usr/bin/python3 -B python/make_wheel.py obj-*/python "$work"

changes=("$work"/*.changes)
say "lintian"
lintian --allow-root --fail-on error "${changes[0]}"

mkdir -p "$out"
sed -n 's/^Package: //p' debian/control | while read -r name; do
    rm -f "$out/${name}"_*.deb
done
rm -f "$out"/ampd-*.whl
mv "$work"/*.deb "$work"/*.whl "$out"
cd "$root"
rm -rf "$work"
say "made in $out:"
(cd "$out" && ls -1 -- *.deb *.whl)
