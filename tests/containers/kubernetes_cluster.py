"""A kube-apiserver with etcd and the controllers of StatefulSets, Jobs and budgets; and a kubelet for ampd."""
import json
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import yaml

TIMEOUT_S = 60
TOKEN = "only-on-loopback-for-this-test"
CONTROLLERS = "statefulset,job,disruption,serviceaccount"
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def eventually(condition, what, timeout_s=TIMEOUT_S, each=lambda: None):
    """Asks until the condition holds, with a call of `each` in between; its value."""
    until = time.monotonic() + timeout_s
    while True:
        each()
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"still not so after {timeout_s} s: {what}"
        time.sleep(0.2)


class Refused(Exception):
    """What the apiserver did not take."""


class Cluster:
    """etcd, apiserver and controllers on loopback, with their data in a folder."""

    def __init__(self, programs, folder):
        self.programs, self.folder, self.running, self.kinds = pathlib.Path(programs), folder, [], {}
        etcd, peer, self.port = free_port(), free_port(), free_port()
        self.etcd = f"127.0.0.1:{etcd}"
        self.start("etcd", "--data-dir", folder / "etcd", "--unsafe-no-fsync", "--logger=zap",
                   "--listen-client-urls", f"http://{self.etcd}", "--advertise-client-urls", f"http://{self.etcd}",
                   "--listen-peer-urls", f"http://127.0.0.1:{peer}")
        key = folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=TIMEOUT_S)
        (folder / "tokens.csv").write_text(f"{TOKEN},root,root,system:masters\n")
        self.start(self.programs / "kube-apiserver", f"--etcd-servers=http://{self.etcd}", f"--secure-port={self.port}",
                   "--bind-address=127.0.0.1", "--endpoint-reconciler-type=none", f"--cert-dir={folder}/certs",
                   "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
                   f"--service-account-signing-key-file={key}", f"--token-auth-file={folder}/tokens.csv",
                   "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24")
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE  # made by the apiserver for itself, a moment ago, on loopback
        eventually(self.ready, "the apiserver is ready")

    def start(self, program, *words):
        with open(self.folder / f"{pathlib.Path(program).name}.log", "wb") as log:
            self.running.append(subprocess.Popen([*DIE_WITH_PARENT, program, *words], stdin=subprocess.DEVNULL,
                                                 stdout=log, stderr=log))

    def start_controllers(self):
        config = self.folder / "kubeconfig"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": f"https://127.0.0.1:{self.port}",
                                                      "insecure-skip-tls-verify": True}}],
            "users": [{"name": "root", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "root"}}]}))
        self.start(self.programs / "kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false",
                   "--secure-port=0", f"--controllers={CONTROLLERS}")

    def stop(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()

    def ready(self):
        assert all(process.poll() is None for process in self.running), f"one has ended; its log is in {self.folder}"
        try:
            return self.call("GET", "/readyz", raw=True) == b"ok"
        except (Refused, OSError):
            return False

    # ---- the REST API ----

    def call(self, method, path, body=None, kind="application/json", raw=False):
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self.tls) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return text if raw else json.loads(text)

    def path(self, one):
        version = one["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, one["kind"]) not in self.kinds:
            for kind in self.call("GET", root)["resources"]:
                if "/" not in kind["name"]:
                    self.kinds[version, kind["kind"]] = kind["name"], kind["namespaced"]
        plural, namespaced = self.kinds[version, one["kind"]]
        namespace = "/namespaces/default" if namespaced else ""
        return f"{root}{namespace}/{plural}/{one['metadata']['name']}"

    def apply(self, one, dry_run=False):
        """Server-side, strictly."""
        query = "?fieldManager=test&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.call("PATCH", self.path(one) + query, one, "application/apply-patch+yaml")

    def get(self, one):
        return self.call("GET", self.path(one))

    def pods(self, name):
        path = f"/api/v1/namespaces/default/pods?labelSelector=app.kubernetes.io/name%3D{name}"
        return {pod["metadata"]["name"]: pod for pod in self.call("GET", path)["items"]}


class Process:
    """One ampd in place of a container: the options of its pod, on ports and in folders of this machine."""

    def __init__(self, kubelet, pod):
        self.kubelet, self.name, self.uid = kubelet, pod["metadata"]["name"], pod["metadata"]["uid"]
        self.ended, self.process = False, None
        container = pod["spec"]["containers"][0]
        self.probe = container["readinessProbe"]["httpGet"]["path"]
        config = next(volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume)
        conf = yaml.safe_load(kubelet.cluster.get({"apiVersion": "v1", "kind": "ConfigMap",
                                                   "metadata": {"name": config}})["data"]["ampd.conf"])
        places = {"/var/lib/ampd-checkpoints": kubelet.folder / "checkpoints",
                  "/var/lib/ampd": kubelet.folder / self.name, "/etc/ampd": kubelet.folder}
        for option, value in conf.items():
            for there, here in places.items():
                if str(value).startswith(there + "/"):
                    conf[option] = str(here) + value[len(there):]
                    break
        for place in places.values():
            place.mkdir(exist_ok=True)
        address = f"127.0.0.1:{kubelet.port_of(self.name)}"
        conf.update({"listen": address, "advertise": address, "metrics-listen": "127.0.0.1:0",
                     "cluster": f"etcd://{kubelet.cluster.etcd}/{conf['cluster'].rsplit('/', 1)[1]}"})
        self.conf, self.log = kubelet.folder / f"{self.name}.conf", kubelet.folder / f"{self.name}.log"
        self.conf.write_text(yaml.safe_dump(conf))
        self.start()

    def start(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*DIE_WITH_PARENT, self.kubelet.ampd, "--config", self.conf],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def page(self, path):
        """(status, text) of its HTTP port; (0, "") where nobody answers."""
        listens = re.search(r'"?address"?[=:]"?127\.0\.0\.1:(\d+)"?[ ,]"?page', self.log.read_text(errors="replace"))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{listens[1]}{path}", timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, TypeError):
            return 0, ""


class Kubelet:
    """Runs ampd for the pods of the StatefulSet ampd, asks their readiness probes, and writes their status."""

    def __init__(self, cluster, ampd, folder):
        self.cluster, self.ampd, self.folder = cluster, ampd, folder
        self.processes, self.ports, self.ready, self.deleted, self.stood_by = {}, {}, {}, [], set()

    def port_of(self, name):
        if name not in self.ports:
            self.ports[name] = free_port()
        return self.ports[name]

    def look(self):
        for name, pod in sorted(self.cluster.pods("ampd").items()):
            self._look_at(name, pod)

    def _look_at(self, name, pod):
        path, process = f"/api/v1/namespaces/default/pods/{name}", self.processes.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            self._end(name, process, path)
        elif "nodeName" not in pod["spec"]:
            self.cluster.call("POST", f"{path}/binding", {
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "here"}})
        elif process is None:
            self.processes[name] = Process(self, pod)
        else:
            if process.process.poll() is not None:  # restartPolicy Always
                process.start()
            self._say(name, process, path)

    def _end(self, name, process, path):
        if process is not None and not process.ended:
            process.ended = True
            self.deleted.append((name, {other for other, ready in self.ready.items() if not ready and other != name}))
            process.process.send_signal(signal.SIGTERM)
        if process is None or process.process.poll() is not None:
            self.processes.pop(name, None)
            self.ready.pop(name, None)
            self.cluster.call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})

    def _say(self, name, process, path):
        ready = process.page(process.probe)[0] == 200
        if ready and process.page("/readyz")[1].startswith("standby"):
            self.stood_by.add(process.uid)
        if self.ready.get(name) == ready:
            return
        self.ready[name] = ready
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [{"type": kind, "status": "True" if ready else "False", "lastTransitionTime": now}
                      for kind in ("Ready", "ContainersReady")]
        self.cluster.call("PATCH", f"{path}/status", {"status": {"phase": "Running", "conditions": conditions}},
                          "application/strategic-merge-patch+json")
        print(f"  {name} is {'ready' if ready else 'not ready'}: {process.page('/readyz')[1].strip()}", flush=True)

    def stop(self):
        for process in self.processes.values():
            process.process.kill()
            process.process.wait()
