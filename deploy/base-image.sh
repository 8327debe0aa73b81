#!/usr/bin/env bash
# base-image.sh: makes sure that this machine has the image debian:bookworm-slim.
#
# Where it is there already, nothing happens. Else it is pulled; and where no registry can be reached, it is made from
# Debian packages with debootstrap, from the mirrors that this machine's own apt uses, and imported under that name.
# apt inside containers then uses the same mirrors, proxy and locally added certificates. Needs docker, and root or sudo
# for debootstrap. Exit code: 0 the image is there, 1 it could not be had.
set -euo pipefail

image=debian:bookworm-slim
suite=bookworm
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# A registry that does not answer within this time is taken for unreachable.
pull_timeout_s=120

say() {
    echo "base-image: $*"
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    else
        sudo --preserve-env=http_proxy,https_proxy,no_proxy "$@"
    fi
}

# Lines "URI RELEASE" of this release's main component as apt here is configured; only what a container can reach.
configured_sources() {
    if command -v apt-get >/dev/null; then
        # The $(...) are apt's own fields.
        # shellcheck disable=SC2016
        apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
            awk -v suite="$suite" '$1 ~ /^https?:/ && $2 ~ "^" suite "(-updates|-security)?$" && $3 == "main" {
                print $1, $2 }' | sort -u
    fi
}

# The proxy settings of apt here, except those of this machine's own loopback, which no container reaches.
configured_proxies() {
    if command -v apt-config >/dev/null; then
        apt-config dump | grep -iE '^Acquire::https?::Proxy' | grep -vE '127\.0\.0\.1|localhost' || true
    fi
}

make_root() { # FOLDER
    local sources mirror include=() host_certificates=/usr/local/share/ca-certificates
    sources=$(configured_sources)
    mirror=$(awk -v suite="$suite" '$2 == suite { print $1; exit }' <<<"$sources")
    if [[ -z $mirror ]]; then
        mirror=http://deb.debian.org/debian
        sources=$(printf '%s\n' "$mirror $suite" "$mirror $suite-updates" \
            "http://deb.debian.org/debian-security $suite-security")
    fi
    if grep -q '^https:' <<<"$sources"; then
        include=(--include=ca-certificates)
    fi

    say "making it with debootstrap from $mirror"
    as_root debootstrap --force-check-gpg --variant=minbase --components=main "${include[@]}" "$suite" "$1" "$mirror" \
        >"$work/debootstrap.log" 2>&1 || {
        tail -n 5 "$work/debootstrap.log" >&2
        say "debootstrap failed" >&2
        return 1
    }
    sed 's/^/deb /; s/$/ main/' <<<"$sources" | as_root tee "$1/etc/apt/sources.list" >/dev/null
    configured_proxies | as_root tee "$1/etc/apt/apt.conf.d/30proxy" >/dev/null
    if [[ ${#include[@]} -gt 0 && -d $host_certificates ]]; then
        as_root cp -RT "$host_certificates" "$1$host_certificates"
        as_root chroot "$1" update-ca-certificates >/dev/null
    fi
    # What the slim image leaves out too: manuals, translations, package files.
    as_root find "$1/usr/share/doc" "$1/var/log" -type f ! -name copyright -delete
    as_root rm -rf "$1"/usr/share/{man,info,locale} "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb \
        "$1"/var/lib/apt/lists/*
    printf 'path-exclude /usr/share/%s/*\n' man info locale |
        as_root tee "$1/etc/dpkg/dpkg.cfg.d/slim" >/dev/null
}

if ! docker version >/dev/null 2>&1; then
    say "docker does not answer; is it installed, running, and may this user use it?" >&2
    exit 1
fi
if docker image inspect "$image" >/dev/null 2>&1; then
    say "$image is there"
    exit 0
fi
say "pulling $image"
if timeout "$pull_timeout_s" docker pull --quiet "$image" 2>/dev/null; then
    exit 0
fi
say "no registry can be reached"
"$here/../scripts/packages.sh" image

# debootstrap refuses a file system mounted without devices or programs, as /tmp sometimes is.
work=$(mktemp -d "${TMPDIR:-/var/tmp}/base-image.XXXXXX")
trap 'as_root rm -rf --one-file-system "$work"' EXIT
make_root "$work/root"
as_root tar -C "$work/root" --numeric-owner -c . |
    docker import --change 'CMD ["bash"]' --message "$suite by debootstrap" - "$image" >/dev/null
say "$image is made: $(docker image inspect --format '{{.Size}}' "$image" | awk '{ printf "%d MB", $1 / 1e6 }')"
