#!/usr/bin/env bash
# The large counts, after a release build: digits, crash, power, sim, mutations, kernels, casts, curves, python, model, coverage, attacks, fuzz, faults, containers, packages, cluster, units, shared, backup, kubernetes, soak, or all.
# (./test.sh --long [SUITE])
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
suites='digits crash power sim mutations kernels casts curves python model coverage attacks fuzz faults containers packages cluster units shared backup kubernetes soak all'
check_only=''
[ "${1-}" = --check ] && check_only=1 && shift # looks at the name alone
suite=${1:-all} broken=0
[[ " $suites " == *" $suite "* ]] || { echo "test.sh: no suite \"$suite\"; there are ${suites// /, }" >&2 && exit 2; }
[ -n "$check_only" ] && exit 0

run() { # suite command...
	[ "$suite" = "$1" ] || [ "$suite" = all ] || return 0
	echo "== long: $1"
	shift
	"$@" || broken=1
}

run digits /usr/bin/python3 tests/integration/test_digits.py build/release/bin --long
# kill -9 at every failpoint, and at random moments of servers and workers; one shard and two, with and without a journal.
run crash /usr/bin/python3 -B tests/crash/crash.py build/release --long
# 30 recorded histories of 20 s: every answer has a place in one order.
run crash /usr/bin/python3 -B tests/crash/histories.py build/release 20 30
# The disks that a power loss can leave of a longer life, with every sector, and random losses.
run power build/release/tests/unit/test_storage_power --long
# Seeds that were never run before, on all cores for 35 minutes.
run sim build/release/bin/sim --seconds 2100 --jobs "$(nproc)"
# Every rule that is taken away is seen by an invariant, within 10,000 seeds each.
run mutations tests/sim/mutations/run.py
run kernels env AMPD_TEST_LONG=1 ctest --test-dir build/release -L kernels --output-on-failure
# All 2^32 inputs of the casts to f16 and bf16, every variant against independent oracles.
run casts build/release/tests/kernels/test_kernel_casts full
# A thousand steps of each optimizer, and of the language model in each precision, beside PyTorch's. About ten minutes.
# shellcheck disable=SC2317 # run calls it
curves() {
	scripts/packages.sh torch && /usr/bin/python3 tests/kernels/torch_curves.py build/release/tests/kernels/curves &&
		/usr/bin/python3 bench/torch_charlm.py curves build/release/bin/charlm
}
run curves curves
# The Python package: 500 steps of its language model in each precision, with one worker and two, beside plain PyTorch's; and ten
# runs whose server and one of whose workers are killed. All optimizers over each kind of connection. About a quarter of an hour.
# shellcheck disable=SC2317 # run calls it
python() {
	scripts/packages.sh torch && AMPD_TEST_LONG=1 /usr/bin/python3 -B tests/python/test_optimizers.py build/release/python &&
		/usr/bin/python3 -B tests/python/charlm_long.py build/release/python
}
run python python
# The protocol in Spin: clean as it is, and broken where a rule is taken away. About four minutes.
# shellcheck disable=SC2317 # run calls it
model() { scripts/packages.sh model && tests/model/run.sh quick; }
run model model
# Of the numerics: 95 % of the lines, and every branch of the scaler machine. Of the server's core: 95 % of the branches.
# shellcheck disable=SC2317 # run calls it
coverage() {
	local failed=0
	scripts/coverage.sh --target amp_tests --tests '^test_(amp|kernel)_' --lines 95 \
		--branches amp/scaler.c --branches amp/dynamic_scaler.c amp || failed=1
	# The same seeds each time: a percentage is compared.
	AMPD_SIM_FIRST=1 scripts/coverage.sh --target core_tests --suites 'unit|sim' --tests '^(test_core_|sim$|sim_seed_)' --taken 95 server/core || failed=1
	# Of storage: 95 % of the branches, with a wider sample of what fails.
	AMPD_TEST_SAMPLE=7 scripts/coverage.sh --target storage_tests --suites unit --tests '^test_(storage|faults)_' --taken 95 storage || failed=1
	return "$failed"
}
run coverage coverage
# The attack table with 1 and 100 connections; the honest p99 of each row. And crowds: 1,024 connections without a token, 64 with
# messages that are not finished, 64 whose messages inflate.
run attacks /usr/bin/python3 tests/conformance/attacks/attacks.py --long build/release/bin
run attacks env AMPD_TEST_LONG=1 /usr/bin/python3 -B tests/conformance/attacks/crowds.py build/release/bin
# The n-th allocation and the n-th call to the disk fail, for each n until a clean run: in process, and over one RPC of each kind.
# shellcheck disable=SC2317 # run calls it
faults() {
	local failed=0
	AMPD_TEST_LONG=1 build/release/tests/faults/test_faults_store || failed=1
	AMPD_TEST_LONG=1 build/release/tests/faults/test_faults_files || failed=1
	build/release/tests/unit/test_rpc_memory || failed=1
	/usr/bin/python3 -B tests/faults/ampd_faults.py build/release --long || failed=1
	return "$failed"
}
run faults faults
# deploy/up.sh, small and as a cluster that loses a process of each kind: shard 0, another one, a worker, an etcd.
run containers tests/containers/containers.sh
# deploy/package.sh, and what it makes in a bare Debian without a network: a step of torch, and the life of a server by its packages,
# whose bytes are those of build/release. A quarter of an hour; more the first time.
run packages tests/containers/packages.sh
# The owner of shard 0 is killed twenty times; what the worker waits is printed. All places, etcd's leader and its data are lost six
# times, in each order that there is. A model of 50 million parameters on 1 to 4
# shards, and from 2 onto 3 and from 4 onto 1: one checkpoint.
# shellcheck disable=SC2317 # run calls it
cluster() {
	local failed=0
	AMPD_KILLS=20 /usr/bin/python3 -B tests/integration/test_server_failover.py build/release/bin standby_takes_over || failed=1
	AMPD_ROUNDS=6 /usr/bin/python3 -B tests/integration/test_server_lost.py build/release/bin || failed=1
	AMPD_LARGE=1 /usr/bin/python3 -B tests/integration/test_server_sizes.py build/release/bin || failed=1
	return "$failed"
}
run cluster cluster
# 60 drawn faults of processes, links, disks and etcd; every wait is printed with its bound. About a quarter of an hour.
run cluster env AMPD_FAULTS=60 /usr/bin/python3 -B tests/integration/test_cluster_faults.py build/release/bin
# 512 MiB of fp16 parameters train in a worker of 192 MiB, to the bytes of one that holds all. Half a minute; 5 GiB of memory.
run units /usr/bin/python3 -B tests/integration/test_units.py --big build/release/bin
# 300 times kill -9 of servers, shards and workers that share memory: each ends in the bytes of an undisturbed run that
# sends them. Then 10,000 actions of a worker that means harm, beside an honest one. Both print their seeds. On two busy
# cores it takes twelve minutes, and eleven.
# shellcheck disable=SC2317 # run calls it
shared() {
	local failed=0
	AMPD_ROUNDS=60 /usr/bin/python3 -B tests/integration/test_server_shared.py build/release/bin killed_ || failed=1
	/usr/bin/python3 -B tests/integration/test_server_shared_attacks.py --long build/release/bin || failed=1
	return "$failed"
}
run shared shared
# 20 times kill -9 of a shard or of ampctl while a model trains and is backed up; the seed is printed. Two minutes.
run backup env AMPD_ROUNDS=20 /usr/bin/python3 -B tests/integration/test_ampctl_backup.py build/release/bin after_kills
# deploy/kubernetes on a kube-apiserver that is built from the Go module proxy, once, in four minutes; then three.
# shellcheck disable=SC2317 # run calls it
kubernetes() {
	local programs
	programs=$(tests/containers/kubernetes_fetch.sh) || { echo "$programs" && return 1; }
	/usr/bin/python3 -B tests/containers/kubernetes.py "$programs" build/release/bin
}
run kubernetes kubernetes
# An hour of two shards and two workers, of which one process dies each minute: memory, descriptors, files, and the bytes of a run
# without kills. Then what is left of the steps where one dies every eleven seconds.
run soak /usr/bin/python3 -B tests/crash/soak.py build/release
run soak /usr/bin/python3 -B tests/crash/soak.py build/release goodput
# 45 minutes in all, two of the nine targets at a time: 600 s each.
run fuzz tests/fuzz/run.sh 600
exit "$broken"
