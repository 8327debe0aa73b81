#!/usr/bin/python3
"""Connections to etcd that end without a word: packets are lost on the way, as where a firewall has forgotten a
connection or a switch has died. There is one endpoint, so no other one can be asked.

    test_cluster_silence.py BIN_DIR [NAME ...]
"""
import fault_network

fault_network.go_inside()

import re  # noqa: E402

import etcd_testing  # noqa: E402
from ampd_testing import eventually, run  # noqa: E402
from etcd_testing import LEASE_S, wait_s  # noqa: E402
from fault_network import call  # noqa: E402

call("ip", "link", "set", "lo", "up")


def drop(*words):
    """Packets to and from etcd; `words` say which. Until `mend`."""
    for chain in ("INPUT", "OUTPUT"):
        call("iptables", "-w", "-A", chain, "-p", "tcp", *words, "-j", "DROP")


def mend():
    call("iptables", "-w", "-F")


def connections(etcd_port):
    """The ports from which etcd is connected to."""
    with open("/proc/net/tcp") as table:
        ends = [re.split(r"[: ]+", line.strip())[1:5] for line in table.readlines()[1:]]
    return {int(own, 16) for _, own, _, other in ends if int(other, 16) == etcd_port}


def begin(context):
    cluster = etcd_testing.Cluster(context, 1, fixed=False)
    return cluster, cluster.of(0), int(re.search(r":(\d+)", cluster.etcd.endpoints.split("//")[-1])[1])


def test_a_connection_to_etcd_that_ends_without_a_word_costs_no_place(context):
    cluster, first, port = begin(context)
    fence, before = first.fence(), connections(port)
    assert before, "there is one"
    try:
        for own in before:
            drop("--sport", str(own))
            drop("--dport", str(own))
        eventually(lambda: connections(port) - before, "there is another one", LEASE_S)
        wait_s(2 * LEASE_S)
        assert first.process.poll() is None and first.fence() == fence, cluster.log(0)[-1500:]
    finally:
        mend()


def test_an_etcd_that_is_out_of_reach_for_half_of_the_lease_costs_no_place(context):
    cluster, first, port = begin(context)
    fence = first.fence()
    for _ in range(3):
        try:
            drop("--sport", str(port))
            drop("--dport", str(port))
            wait_s(LEASE_S / 2)
        finally:
            mend()
        wait_s(LEASE_S)
        assert first.process.poll() is None and first.fence() == fence, cluster.log(0)[-1500:]


if __name__ == "__main__":
    run(globals())
