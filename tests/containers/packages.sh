#!/usr/bin/env bash
# packages.sh: builds the packages and installs them in a bare Debian 12 without a network: a server of theirs applies a step of a
# torch module, and nothing is left when they are removed. Prints the seconds from the installation to that step. Ten minutes the
# first time, most of it the image with Debian's PyTorch; two minutes later.
# shellcheck disable=SC2317 # ends_with_0 calls what it is given
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

image=ampd-packages-test
# Far longer than all of it takes; for a hang.
container_timeout_s=600
if ! docker version >/dev/null 2>&1; then
	echo "SKIPPED: packages: docker does not answer (package docker.io)"
	exit 77
fi
out=$(mktemp -d "${TMPDIR:-/tmp}/ampd-packages.XXXXXX")
container=ampd-packages-$$
trap 'docker rm -f "$container" >/dev/null 2>&1; rm -rf "$out"' EXIT
failed=0

ends_with_0() { # name, command...
	local name=$1
	shift
	if "$@" >"$out/log" 2>&1; then
		grep -E '^(seconds|[WI]): ' "$out/log" || true
		echo "[       OK ] $name"
	else
		cat "$out/log"
		echo "[  FAILED  ] $name"
		failed=1
	fi
}

# Of every package the paragraph in control, and the wheel.
all_are_there() {
	local name
	while read -r name; do
		[ "$(find "$out/packages" -name "${name}_*.deb" | wc -l)" -eq 1 ] || { echo "no package $name" && return 1; }
	done < <(sed -n 's/^Package: //p' deploy/debian/control)
	[ "$(find "$out/packages" -name 'ampd-*-py3-none-any.whl' | wc -l)" -eq 1 ]
}

# No file names this tree or a home, and no program has a library searched for at a place of its own.
name_no_machine() {
	local package file bad=0
	for package in "$out"/packages/*.deb; do
		dpkg-deb -R "$package" "$out/content"
		! grep -rlaF -e "$PWD/" -e "$HOME/" -e /obj- "$out/content" || bad=1
		while IFS= read -r -d '' file; do
			! readelf -d "$file" 2>/dev/null | grep -E 'R(UN)?PATH' || bad=1
		done < <(find "$out/content" -type f -print0)
		rm -rf "$out/content"
	done
	return "$bad"
}

the_same_elsewhere() {
	PACKAGE_WORK=$out/elsewhere deploy/package.sh "$out/again" && diff -r "$out/packages" "$out/again"
}

in_a_container() {
	local script=examples/python/three_lines.py
	[ -e "$script" ] || script=tests/containers/first_step.py
	docker create --name "$container" --network none "$image" bash /packages_inside.sh /first_step.py /packages >/dev/null
	docker cp tests/containers/packages_inside.sh "$container:/packages_inside.sh"
	docker cp "$script" "$container:/first_step.py"
	docker cp "$out/packages" "$container:/packages"
	timeout "$container_timeout_s" docker start -a "$container"
}

ends_with_0 packages_are_built_and_lintian_finds_no_error deploy/package.sh "$out/packages"
ends_with_0 all_packages_and_the_wheel_are_there all_are_there
ends_with_0 packages_do_not_depend_on_where_they_were_built name_no_machine
ends_with_0 packages_built_in_another_folder_are_the_same_bytes the_same_elsewhere
ends_with_0 a_debian_with_pytorch_is_there deploy/base-image.sh
ends_with_0 the_image_is_built docker build -q -t "$image" -f tests/containers/Dockerfile.packages .
ends_with_0 installed_without_a_network_they_train_and_are_removed in_a_container
exit "$failed"
