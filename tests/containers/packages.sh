#!/usr/bin/env bash
# packages.sh [life]: builds the packages and installs them in a bare Debian 12 without a network: a server of theirs applies a step
# of a torch module, and nothing is left when they are removed. Prints the seconds from the installation to that step. Then a
# server's life (packages_life.sh): upgraded while a job runs, removed, purged; the job ends with the bytes of one on build/release.
# Twenty minutes the first time, a half of it the image with Debian's PyTorch; with "life" all but what PyTorch takes.
# shellcheck disable=SC2317 # ends_with_0 calls what it is given
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

image=ampd-packages-test bare=ampd-packages-bare
# So many that the job outlives all that happens to its server meanwhile.
life_steps=2000
# A disk of its own in the data of an instance.
mounted=/var/lib/ampd-third/checkpoints
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

# The command is a process of its own: only so does it end with its first error.
ends_with_0() { # name, command...
	local name=$1
	shift
	"$@" >"$out/log" 2>&1 &
	if wait $!; then
		grep -E '^(seconds|figure|[WI]): ' "$out/log" || true
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

# Of a clone, whose files have other times.
the_same_elsewhere() {
	git clone -q --no-checkout . "$out/clone"
	git ls-files -z --cached --others --exclude-standard --deduplicate | tar --null -T - -c | tar -C "$out/clone" -xm
	git -C "$out/clone" reset -q
	PACKAGE_WORK=$out/elsewhere "$out/clone/deploy/package.sh" "$out/again"
	diff -r "$out/packages" "$out/again"
}

# A program that uses the client and the numerics, from what libampclient-dev has.
builds_on_the_packages() {
	local libraries source
	mkdir -p "$out/tree/examples" "$out/life"
	for name in libampclient0 libampclient-dev; do dpkg-deb -x "$out/packages/${name}"_*.deb "$out/root"; done
	cp -r examples/digits "$out/tree/examples"
	PKG_CONFIG_PATH=$(dirname "$(find "$out/root" -name ampclient.pc)")
	export PKG_CONFIG_PATH
	mapfile -t source < <(find "$out/tree/examples/digits" -name '*.c')
	read -ra libraries <<<"$(pkg-config --cflags --libs ampclient amp)"
	cc -std=c17 -O3 -ffp-contract=off -Wall -Werror -D_POSIX_C_SOURCE=200809L -DDIGITS_DATA_PATH='""' -I"$out/tree" "${source[@]}" \
		-o "$out/life/digits" "${libraries[@]}" -lm
	cp examples/digits/digits.csv "$out/life"
}

# As it was when ampctl was in it: the version before ampd-tools, of the files of this one.
makes_the_package_before() {
	local content=$out/content
	mkdir -p "$out/life/before"
	dpkg-deb -R "$out"/packages/ampd_*.deb "$content"
	dpkg-deb -x "$out"/packages/ampd-tools_*.deb "$content"
	rm -r "$content/usr/share/doc/ampd-tools" "$content/etc/ampd" "$content/DEBIAN/md5sums"
	sed -i '/^\/etc\/ampd\//d' "$content/DEBIAN/conffiles"
	sed -i -e 's/^Version: .*/Version: 0.1.0/' -e '/^Recommends:/d' "$content/DEBIAN/control"
	dpkg-deb -b "$content" "$out/life/before/ampd_0.1.0.deb"
	rm -r "$content"
}

# The same packages as ever, of the next version.
builds_the_next_version() {
	local version
	version=$(sed -n 's/^project(ampd VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
	PACKAGE_VERSION=${version%.*}.$((${version##*.} + 1)) PACKAGE_WORK=$out/next deploy/package.sh "$out/life/later"
}

lives_in_a_container() {
	cp -r "$out/packages" "$out/life/now"
	docker create --name "$container" --network none --tmpfs "$mounted" "$bare" \
		bash /packages_life.sh /packages "$life_steps" "$mounted" >/dev/null
	docker cp tests/containers/packages_life.sh "$container:/packages_life.sh"
	docker cp "$out/life" "$container:/packages"
	timeout "$container_timeout_s" docker start -a "$container"
	docker cp "$container:/packages/exported.safetensors" "$out/packaged.safetensors"
	docker rm -f "$container" >/dev/null
}

# The same job, left alone, on what cmake has built here.
has_the_bytes_of_a_built_server() {
	local bin=build/release/bin socket=$out/s rank workers=()
	[ -x "$bin/digits" ] || { echo "no $bin/digits: ./test.sh --build-only builds it" && return 1; }
	"$bin/ampd" --data-dir "$out/data" --listen "unix:$socket" --metrics-listen none >"$out/ampd.log" 2>&1 &
	server=$!
	trap 'kill "$server"' EXIT
	timeout "$container_timeout_s" sh -c "until $bin/ampctl -e unix:$socket ready >/dev/null 2>&1; do sleep 0.1; done"
	for rank in 0 1; do
		RANK=$rank WORLD_SIZE=2 "$bin/digits" --connect "unix:$socket" --steps "$life_steps" --durability step --quiet &
		workers+=($!)
	done
	wait "${workers[0]}"
	wait "${workers[1]}"
	"$bin/ampctl" -e "unix:$socket" checkpoint export digits "$out/built.safetensors" --step "$life_steps"
	cmp "$out/packaged.safetensors" "$out/built.safetensors"
	echo "figure: $(stat -c %s "$out/built.safetensors") bytes are the same"
}

in_a_container() {
	local script=examples/python/three_lines.py
	[ -e "$script" ] || script=tests/containers/first_step.py
	docker create --name "$container" --network none "$image" bash /packages_inside.sh /first_step.py /packages >/dev/null
	docker cp tests/containers/packages_inside.sh "$container:/packages_inside.sh"
	docker cp "$script" "$container:/first_step.py"
	docker cp "$out/packages" "$container:/packages"
	timeout "$container_timeout_s" docker start -a "$container"
	docker rm -f "$container" >/dev/null
}

ends_with_0 packages_are_built_and_lintian_finds_no_error deploy/package.sh "$out/packages"
ends_with_0 all_packages_and_the_wheel_are_there all_are_there
ends_with_0 packages_do_not_depend_on_where_they_were_built name_no_machine
ends_with_0 the_bill_of_materials_names_all_that_is_linked /usr/bin/python3 -B tests/integration/test_sbom.py --packages "$out/packages"
ends_with_0 packages_built_in_another_folder_are_the_same_bytes the_same_elsewhere
ends_with_0 a_debian_is_there deploy/base-image.sh
ends_with_0 a_program_is_built_with_the_packages builds_on_the_packages
ends_with_0 a_package_of_before_is_made makes_the_package_before
ends_with_0 the_next_version_is_built builds_the_next_version
ends_with_0 the_bare_image_is_built docker build -q -t "$bare" --target bare -f tests/containers/Dockerfile.packages .
ends_with_0 upgraded_under_a_running_job_no_step_is_lost_and_data_go_when_purged_alone lives_in_a_container
ends_with_0 a_built_server_has_the_same_bytes has_the_bytes_of_a_built_server
if [ "${1-}" != life ]; then
	ends_with_0 the_image_with_pytorch_is_built docker build -q -t "$image" -f tests/containers/Dockerfile.packages .
	ends_with_0 installed_without_a_network_they_train_and_are_removed in_a_container
fi
exit "$failed"
