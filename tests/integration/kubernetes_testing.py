"""deploy/kubernetes: what its overlays make, with kustomize or by the little of it that they use, and what in it does
not fit together.
"""
import copy
import pathlib
import re
import shutil
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("overlays/one-shard", "overlays/three-shards", "workers", "operator")
TIMEOUT_S = 60
USED = {"apiVersion", "kind", "labels", "resources", "images", "configMapGenerator", "replicas", "patches",
        "components"}
BY_NAME = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
PODS = {"StatefulSet", "Job", "Pod"}


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def kustomize():
    """The command that renders a folder, or None."""
    for program, words in (("kustomize", ["build"]), ("kubectl", ["kustomize"])):
        if shutil.which(program):
            return [program, *words]
    return None


def rendered(command, folder):
    text = subprocess.run([*command, folder], capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
    return [document for document in yaml.safe_load_all(text) if document is not None]


# ---- the little of kustomize ----

def _merged(old, new, key=None):
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _merged(old.get(name), value, name) for name, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and key in BY_NAME:
        by = BY_NAME[key]
        there = {one[by]: one for one in old}
        there.update({one[by]: _merged(there[one[by]], one) if one[by] in there else one for one in new})
        return list(there.values())
    return new


def _name(thing):
    return thing["kind"], thing["metadata"]["name"]


def plain(folder):
    """The objects of a folder, without hashes in their names and without the labels that kustomize adds."""
    folder = folder.resolve()
    wanted = documents(folder / "kustomization.yaml")[0]
    assert set(wanted) <= USED, f"{folder}: {set(wanted) - USED} is not known to this test without kustomize"
    objects = []
    for entry in [*wanted.get("resources", ()), *wanted.get("components", ())]:
        path = folder / entry
        objects += plain(path) if path.is_dir() else documents(path)
    for one in wanted.get("configMapGenerator", ()):
        data = {file: (folder / file).read_text() for file in one["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one["name"]}, "data": data})
    for patch in wanted.get("patches", ()):
        for change in documents(folder / patch["path"]):
            at = [_name(one) for one in objects].index(_name(change))
            objects[at] = _merged(objects[at], change)
    for one in objects:
        for count in wanted.get("replicas", ()):
            if _name(one) == ("StatefulSet", count["name"]):
                one["spec"]["replicas"] = count["count"]
        for image in wanted.get("images", ()):
            for container in pod_of(one).get("containers", ()):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    return objects


def as_plain(objects):
    """What kustomize has made, as `plain` has it."""
    objects = copy.deepcopy(objects)
    generated = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    for one in objects:
        labels = one["metadata"].get("labels", {})
        labels.pop("app.kubernetes.io/part-of", None)
        if one["kind"] == "ConfigMap":
            one["metadata"]["name"] = one["metadata"]["name"].rsplit("-", 1)[0]
        for volume in pod_of(one).get("volumes", ()):
            if volume.get("configMap", {}).get("name") in generated:
                volume["configMap"]["name"] = volume["configMap"]["name"].rsplit("-", 1)[0]
    return {_name(one): _sorted(one) for one in objects}


def _sorted(value, key=None):
    if isinstance(value, dict):
        return {name: _sorted(one, name) for name, one in value.items() if one not in ({}, None)}
    if isinstance(value, list):
        items = [_sorted(one) for one in value]
        return sorted(items, key=lambda one: one[BY_NAME[key]]) if key in BY_NAME else items
    return value


# ---- what does not fit together ----

HARDENED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
NAMED = (("ConfigMap", "configMap", "name"), ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"))


def _template(one):
    return one if one["kind"] == "Pod" else one["spec"]["template"]


def pod_of(one):
    return _template(one)["spec"] if one["kind"] in PODS else {}


def labels_of(one):
    return _template(one)["metadata"]["labels"]


def _has(labels, selector):
    return selector.items() <= labels.items()


def _hardened(name, pod):
    security = pod["securityContext"]
    if not security.get("runAsNonRoot") or security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{name}: root may run, or no seccomp"
    if pod.get("automountServiceAccountToken") is not False:
        yield f"{name}: the token of the service account is mounted"
    for container in pod["containers"]:
        own = container.get("securityContext", {})
        if own != HARDENED:
            yield f"{name}: its container is not hardened: {own}"
        if "limits" not in container.get("resources", {}):
            yield f"{name}: its container has no limits"


def _volumes(name, one, objects):
    pod = pod_of(one)
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
    mounted = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", ())}
    if volumes != mounted:
        yield f"{name}: volumes {sorted(volumes)}, mounted {sorted(mounted)}"
    there = {_name(other) for other in objects}
    for volume in pod.get("volumes", ()):
        for kind, key, field in NAMED:
            if key in volume and (kind, volume[key][field]) not in there:
                yield f"{name}: there is no {kind} {volume[key][field]}"


def _probes(name, pod):
    for container in pod["containers"]:
        ports = {port["name"] for port in container.get("ports", ())}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            for way in ("httpGet", "tcpSocket"):
                port = container.get(kind, {}).get(way, {}).get("port")
                if port is not None and port not in ports:
                    yield f"{name}: {kind} asks port {port}"


def _selectors(one, workloads):
    """That somebody is meant, and has the ports."""
    spec, name = one["spec"], "/".join(_name(one))
    selector = spec.get("selector") or spec.get("podSelector") or {}
    meant = [work for work in workloads if _has(labels_of(work), selector.get("matchLabels", selector))]
    if not meant:
        yield f"{name} selects no pod"
    containers = [container for work in meant for container in pod_of(work)["containers"]]
    there = {port["name"] for container in containers for port in container.get("ports", ())}
    wanted = {port.get("targetPort") for port in spec.get("ports", ())}
    wanted |= {port["port"] for rule in spec.get("ingress", ()) for port in rule.get("ports", ())}
    if wanted - there:
        yield f"{name}: no container has the ports {wanted - there}"


def faults(objects):
    """Sentences."""
    workloads = [one for one in objects if one["kind"] in PODS]
    services = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Service"}
    for one in workloads:
        name = "/".join(_name(one))
        yield from _hardened(name, pod_of(one))
        yield from _volumes(name, one, objects)
        yield from _probes(name, pod_of(one))
        if one["kind"] == "StatefulSet":
            if not _has(labels_of(one), one["spec"]["selector"]["matchLabels"]):
                yield f"{name} does not select its own pods"
            service = services.get(one["spec"]["serviceName"], {}).get("spec", {})
            if service.get("clusterIP") != "None" or not service.get("publishNotReadyAddresses"):
                yield f"{name}: no headless Service {one['spec']['serviceName']} that has pods that are not ready"
    for one in objects:
        if one["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            yield from _selectors(one, workloads)
        if one["kind"] == "ServiceMonitor":
            wanted = one["spec"]["selector"]["matchLabels"]
            meant = [service for service in services.values() if _has(service["metadata"]["labels"], wanted)]
            ports = {port["name"] for service in meant for port in service["spec"]["ports"]}
            if len(meant) != 1 or any(end["port"] not in ports for end in one["spec"]["endpoints"]):
                yield f"the ServiceMonitor means {len(meant)} Services, with ports {sorted(ports)}"


def unlisted(folder=FOLDER):
    """Files that no kustomization names."""
    named = set()
    for path in folder.rglob("kustomization.yaml"):
        named.add(path)
        text = re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.M)
        named |= {path.parent / word for word in re.findall(r"[\w./-]+\.(?:yaml|conf)\b(?![\w.])", text)}
    there = {path for path in folder.rglob("*") if path.is_file()}
    return sorted(str(path.relative_to(folder)) for path in named ^ there)
