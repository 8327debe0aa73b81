#!/usr/bin/env bash
# kubernetes_fetch.sh: builds kube-apiserver, kube-controller-manager and kustomize from the Go module proxy into a cache outside the
# tree, once: about four minutes on two cores. Prints the folder. Exit code 77, with the reason, where that is not possible.
set -euo pipefail

version=v1.34.4
staging=v0.34.4 # of the modules that are released with it
kustomize=v5.7.1
operator=v0.85.0 # of Prometheus; its CRD
cache=${AMPD_CACHE:-$HOME/.cache/ampd}/kubernetes-$version
programs=(kube-apiserver kube-controller-manager kustomize service-monitor-crd.yaml)

complete() {
	local program
	for program in "${programs[@]}"; do
		[ -e "$cache/$program" ] || return 1
	done
}
skip() { echo "SKIPPED: kubernetes: $1" && exit 77; }

if complete; then
	echo "$cache" && exit 0
fi
command -v go >/dev/null || skip "kube-apiserver needs go to be built (package golang-go)"
echo "kubernetes_fetch.sh: building kube-apiserver and others into $cache: once, four minutes on two idle cores" >&2
mkdir -p "$cache"
work=$(mktemp -d "${TMPDIR:-/tmp}/ampd-kubernetes.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
if ! go mod download -json "k8s.io/kubernetes@$version" >about.json 2>download.log; then
	skip "the Go module proxy does not give k8s.io/kubernetes $version"
fi
sources=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' about.json)

# k8s.io/kubernetes names its own parts without versions: each is told here.
{
	printf 'module kubernetes.build\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n'
	printf 'require k8s.io/kubernetes %s\n\nreplace (\n' "$version"
	sed -n "s|^\t\(k8s.io/[^ ]*\) => ./staging/.*|\t\1 => \1 $staging|p" "$sources/go.mod"
	printf ')\n'
} >go.mod
told="-X k8s.io/component-base/version.gitVersion=$version"
told+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34"
build() {
	nice go build -mod=mod -trimpath -ldflags "-s -w $told" -o "$work/" k8s.io/kubernetes/cmd/kube-apiserver \
		k8s.io/kubernetes/cmd/kube-controller-manager &&
		GOBIN=$work GOFLAGS=-mod=mod nice go install "sigs.k8s.io/kustomize/kustomize/v5@$kustomize" &&
		go mod download -json "github.com/prometheus-operator/prometheus-operator@$operator" >operator.json
}
if ! build >build.log 2>&1; then
	tail -n 20 build.log >&2
	grep -qE 'dial tcp|no such host|403 Forbidden|404 Not Found|connection refused|i/o timeout' build.log &&
		skip "the Go module proxy does not give all that kube-apiserver needs"
	echo "kubernetes_fetch.sh: the build failed" >&2 && exit 1
fi
crd=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' operator.json)/example/prometheus-operator-crd
cp "$crd/monitoring.coreos.com_servicemonitors.yaml" service-monitor-crd.yaml
mv "${programs[@]}" "$cache"
echo "$cache"
