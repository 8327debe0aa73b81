#!/usr/bin/python3
"""deploy/kubernetes: that its files fit together, and ampd with them. (./test.sh --long kubernetes: a real apiserver.)

    test_kubernetes.py BIN_DIR [NAME ...]
"""
import os
import re
import subprocess

import yaml

import ampd_testing
import kubernetes_testing as kubernetes
from ampd_testing import CALL_TIMEOUT_S, ROOT
from kubernetes_testing import FOLDER, OVERLAYS, plain, pod_of


def one_of(objects, kind, name):
    return next(one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))


def pod_environment(one):
    return {entry["name"]: entry.get("value", "") for entry in pod_of(one)["containers"][0].get("env", ())}


def conf_of(objects):
    return one_of(objects, "ConfigMap", "ampd")["data"]["ampd.conf"]


def test_every_file_belongs_to_a_kustomization(_context):
    assert kubernetes.unlisted() == []


def test_labels_ports_volumes_and_names_agree(_context):
    for overlay in OVERLAYS:
        objects = plain(FOLDER / overlay)
        assert list(kubernetes.faults(objects)) == [], overlay
    monitored = plain(FOLDER / "overlays/one-shard") + plain(FOLDER / "components/service-monitor")
    assert list(kubernetes.faults(monitored)) == []


def test_what_does_not_agree_is_noticed(_context):
    def changed(change):
        objects = plain(FOLDER / "overlays/three-shards") + plain(FOLDER / "components/service-monitor")
        change(objects)
        return list(kubernetes.faults(objects))

    def ampd(objects):
        return one_of(objects, "StatefulSet", "ampd")

    def container(objects):
        return pod_of(ampd(objects))["containers"][0]

    for change in (lambda o: container(o)["readinessProbe"]["httpGet"].update(port="http"),
                   lambda o: container(o)["securityContext"].update(readOnlyRootFilesystem=False),
                   lambda o: container(o)["volumeMounts"].pop(),
                   lambda o: pod_of(ampd(o))["volumes"].pop(),
                   lambda o: pod_of(ampd(o))["securityContext"].pop("seccompProfile"),
                   lambda o: o.remove(one_of(o, "ConfigMap", "ampd")),
                   lambda o: o.remove(one_of(o, "PersistentVolumeClaim", "ampd-checkpoints")),
                   lambda o: one_of(o, "Service", "ampd")["spec"]["selector"].update(app="other"),
                   lambda o: one_of(o, "Service", "ampd-peers")["spec"].pop("publishNotReadyAddresses"),
                   lambda o: one_of(o, "NetworkPolicy", "ampd")["spec"]["ingress"][0]["ports"][0].update(port="rpc"),
                   lambda o: one_of(o, "PodDisruptionBudget", "ampd")["spec"]["selector"]["matchLabels"].update(a="b"),
                   lambda o: one_of(o, "ServiceMonitor", "ampd")["spec"]["endpoints"][0].update(port="http"),
                   lambda o: ampd(o)["spec"]["selector"]["matchLabels"].update(app="other")):
        assert changed(change), f"line {change.__code__.co_firstlineno}"


def test_the_overlays_are_rendered_alike_by_kustomize_and_by_this_test(_context):
    command = kubernetes.kustomize()
    if command is None:
        print("neither kustomize nor kubectl is here: what they would make is made by this test alone")
        return
    for overlay in OVERLAYS:
        theirs, own = kubernetes.rendered(command, FOLDER / overlay), kubernetes.as_plain(plain_without_hash(overlay))
        assert kubernetes.as_plain(theirs) == own, overlay


def plain_without_hash(overlay):
    """As kustomize's names are: as_plain takes a hash away."""
    objects = plain(FOLDER / overlay)
    for one in objects:
        if one["kind"] == "ConfigMap":
            one["metadata"]["name"] += "-0"
        for volume in pod_of(one).get("volumes", ()):
            if "configMap" in volume:
                volume["configMap"]["name"] += "-0"
    return objects


def test_ampd_takes_the_options_of_each_overlay(context):
    for overlay in ("overlays/one-shard", "overlays/three-shards"):
        objects = plain(FOLDER / overlay)
        path = context.work / "ampd.conf"
        path.write_text(conf_of(objects))
        ampd = one_of(objects, "StatefulSet", "ampd")
        command = pod_of(ampd)["containers"][0]["command"]
        assert command == ["ampd", "--config=/etc/ampd/config/ampd.conf"], command
        done = subprocess.run([context.bin_dir / "ampd", f"--config={path}", "--check-config"], capture_output=True,
                              text=True, timeout=ampd_testing.CALL_TIMEOUT_S, check=False,
                              env={**os.environ, **pod_environment(ampd)})
        assert done.returncode == 0, (overlay, done.stderr)


def test_paths_ports_and_counts_are_those_of_the_options(_context):
    for overlay, shards, standbys in (("overlays/one-shard", 1, 0), ("overlays/three-shards", 3, 1)):
        objects = plain(FOLDER / overlay)
        ampd, conf = one_of(objects, "StatefulSet", "ampd"), yaml.safe_load(conf_of(objects))
        container = pod_of(ampd)["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert conf["listen"].endswith(f":{ports['grpc']}") and conf["metrics-listen"].endswith(f":{ports['metrics']}")
        assert (conf.get("shards", 1), ampd["spec"]["replicas"]) == (shards, shards + standbys)
        places = [mount["mountPath"] + "/" for mount in container["volumeMounts"]]
        for option, value in conf.items():
            if option.endswith(("-file", "-dir")):
                assert value.startswith(tuple(places)), f"{overlay}: nothing is mounted for {option}: {value}"
        if "cluster" in conf:
            etcd = one_of(objects, "StatefulSet", "ampd-etcd")
            members = [f"ampd-etcd-{i}.ampd-etcd:2379" for i in range(etcd["spec"]["replicas"])]
            assert conf["cluster"] == f"etcd://{','.join(members)}/ampd", conf["cluster"]
            wanted = f"$(POD_NAME).{ampd['spec']['serviceName']}.$(POD_NAMESPACE).svc:{ports['grpc']}"
            assert pod_environment(ampd)["AMPD_ADVERTISE"] == wanted


def test_workers_are_as_many_as_their_world_and_they_and_the_operator_reach_ampd(_context):
    job = one_of(plain(FOLDER / "workers"), "Job", "digits")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(pod_environment(job)["WORLD_SIZE"])
    policy = one_of(plain(FOLDER / "overlays/one-shard"), "NetworkPolicy", "ampd")
    admitted = [peer["podSelector"]["matchLabels"] for peer in policy["spec"]["ingress"][0]["from"]]
    for one in (job, one_of(plain(FOLDER / "operator"), "Pod", "ampctl")):
        labels = kubernetes.labels_of(one)
        assert any(wanted.items() <= labels.items() for wanted in admitted), "the NetworkPolicy keeps it out"
    assert "--connect=ampd:7420" in pod_of(job)["containers"][0]["command"]


def test_tokens_that_the_documents_make_are_readable_by_their_owner_alone(context):
    """What a shell's > makes has mode 0644, unless umask says otherwise."""
    blocks = [block for path in (ROOT / "docs").glob("*.md")
              for block in re.findall(r"^```\w*\n(.*?)^```", path.read_text(), re.M | re.S)]
    makes = [block for block in blocks if re.search(r"token new .* > ", block)]
    assert len(makes) >= 3, makes
    for block in makes:
        folder = context.folder()
        folder.mkdir()
        lines = "\n".join(re.findall(r"^(?:umask|ampctl token new) .*", block, re.M))
        subprocess.run(["sh", "-ec", f"umask 022\n{lines}"], cwd=folder, check=True, timeout=CALL_TIMEOUT_S,
                       stdin=subprocess.DEVNULL, env={**os.environ, "PATH": f"{context.bin_dir}:{os.environ['PATH']}"})
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}
        assert len(modes) >= 2 and set(modes.values()) == {"0o600"}, (block, modes)


def test_the_operator_has_room_for_a_model_of_all_shards(_context):
    def gigabytes(one):
        return int(re.fullmatch(r"(\d+)Gi", pod_of(one)["containers"][0]["resources"]["limits"]["memory"])[1])

    objects = plain(FOLDER / "overlays/three-shards")
    operator = one_of(plain(FOLDER / "operator"), "Pod", "ampctl")
    shards = yaml.safe_load(conf_of(objects))["shards"]
    assert gigabytes(operator) >= shards * gigabytes(one_of(objects, "StatefulSet", "ampd"))


if __name__ == "__main__":
    ampd_testing.run(globals())
