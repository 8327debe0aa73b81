#!/usr/bin/python3
"""deploy/kubernetes on a real kube-apiserver, with the controllers of StatefulSets, Jobs and budgets. No kubelet: this
test runs ampd for the pods, and says how their probes answer.

    kubernetes.py PROGRAMS BIN_DIR     PROGRAMS: what kubernetes_fetch.sh prints
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import kubernetes_testing as manifests  # noqa: E402
from kubernetes_cluster import DIE_WITH_PARENT, TIMEOUT_S, Cluster, Kubelet, Refused, eventually  # noqa: E402

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace",
             "metadata": {"name": "default", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
AMPD = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "ampd"}}
BUDGET = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "ampd"}}
PODS = ["ampd-0", "ampd-1", "ampd-2", "ampd-3"]
ROLL_S = 300        # four pods, each with minReadySeconds
STANDS_STILL_S = 40  # more than twice minReadySeconds


def passed(name):
    print(f"[       OK ] {name}", flush=True)


def lacks(wanted, got, at=""):
    """Where what was read back is not what was applied; defaults may be added."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key, value in wanted.items():
            yield from lacks(value, got.get(key), f"{at}.{key}")
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        for index, (one, other) in enumerate(zip(wanted, got)):
            yield from lacks(one, other, f"{at}[{index}]")
    elif wanted != got:
        yield f"{at}: {got}, not {wanted}"


class Test:
    def __init__(self, programs, bin_dir, folder):
        self.programs, self.bin_dir, self.folder = pathlib.Path(programs), bin_dir.resolve(), folder
        self.manifests = folder / "manifests"
        shutil.copytree(manifests.FOLDER, self.manifests)
        self.cluster = Cluster(programs, folder)
        self.kubelet = Kubelet(self.cluster, self.bin_dir / "ampd", folder)
        self.worker = None

    def render(self, name):
        return manifests.rendered([self.programs / "kustomize", "build"], self.manifests / name)

    def apply_all(self, name):
        for one in self.render(name):
            self.cluster.apply(one)

    # ---- what the apiserver says ----

    def takes_everything(self):
        self.cluster.apply(NAMESPACE)
        crd = manifests.documents(self.programs / "service-monitor-crd.yaml")[0]
        self.cluster.apply(crd)
        eventually(lambda: any(one["type"] == "Established" and one["status"] == "True"
                               for one in self.cluster.get(crd)["status"].get("conditions") or ()),
                   "the kind ServiceMonitor is there")
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self.cluster.start_controllers()
        eventually(lambda: self.answers(account), "the namespace has its service account")
        for overlay in manifests.OVERLAYS:
            path = self.manifests / overlay / "kustomization.yaml"
            if "# components: " in path.read_text():
                path.write_text(path.read_text().replace("# components: ", "components: "))
        # Each overlay by itself and dry, then those that stay.
        for overlay in manifests.OVERLAYS:
            for one in self.render(overlay):
                wrong = list(lacks(one, self.cluster.apply(one, dry_run=True)))
                assert not wrong, (overlay, one["kind"], wrong)
        passed("every_object_is_taken_strictly_in_a_dry_run")

    def answers(self, path):
        try:
            return self.cluster.call("GET", path)
        except Refused:
            return None

    def refuses_what_it_does_not_know(self):
        one = next(one for one in self.render("overlays/one-shard") if one["kind"] == "StatefulSet")
        one["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
        try:
            self.cluster.apply(one, dry_run=True)
        except Refused as refusal:
            assert "readinesProbe" in str(refusal), refusal
        else:
            raise AssertionError("a field that does not exist was taken")
        passed("a_field_that_does_not_exist_is_refused")

    def has_them_as_wanted(self):
        count = 0
        for overlay in ("overlays/three-shards", "workers", "operator"):
            for one in self.render(overlay):
                first = self.cluster.apply(one)
                wrong = list(lacks(one, self.cluster.get(one)))
                assert not wrong, (overlay, one["kind"], wrong)
                spec = self.cluster.apply(one)
                assert spec["metadata"].get("generation") == first["metadata"].get("generation"), one["kind"]
                count += 1
        print(f"  {count} objects")
        passed("what_is_read_back_is_what_was_applied_and_applying_it_again_changes_nothing")

    # ---- what the controllers do ----

    def has_all_pods_at_once(self):
        eventually(lambda: sorted(self.cluster.pods("ampd")) == PODS, "all pods of ampd are there")
        eventually(lambda: len(self.cluster.pods("ampd-etcd")) == 3, "all pods of etcd are there")
        eventually(lambda: len(self.cluster.pods("digits")) == 3, "all pods of workers are there")
        workers = self.cluster.pods("digits")
        index = "batch.kubernetes.io/job-completion-index"
        assert sorted(pod["metadata"]["annotations"][index] for pod in workers.values()) == ["0", "1", "2"]
        for pod in workers.values():
            rank = next(one for one in pod["spec"]["containers"][0]["env"] if one["name"] == "RANK")
            assert rank["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{index}']", rank
        passed("all_pods_are_made_at_once_under_the_standard_restricted_and_each_worker_has_its_rank")

    def serves(self):
        self.make_secrets()
        eventually(lambda: list(self.kubelet.ready.values()) == [True] * 4, "all are ready", each=self.kubelet.look)
        self.one_stands_by()
        budget = eventually(self.allowed, "the budget counts the pods", each=self.kubelet.look)
        assert (budget["expectedPods"], budget["currentHealthy"], budget["disruptionsAllowed"]) == (4, 4, 1), budget
        passed("three_serve_and_one_stands_by_and_all_four_are_ready_and_in_the_budget")

    def make_secrets(self):
        """In the folders that the pods have them in."""
        tls, tokens = self.folder / "tls", self.folder / "tokens"
        tls.mkdir()
        tokens.mkdir()
        (tls / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        for words in (["req", "-x509", *key, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt"],
                      ["req", *key, "-subj", "/CN=ampd", "-keyout", "tls.key", "-out", "tls.csr"],
                      ["x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                       "-extfile", "names", "-out", "tls.crt"]):
            subprocess.run(["openssl", *words], cwd=tls, check=True, capture_output=True, timeout=TIMEOUT_S)
        for role, file in (("peer", "peer.token"), ("operator", "root.token")):
            token = subprocess.run([self.bin_dir / "ampctl", "token", "new", role, role, "--append", tokens / "tokens"],
                                   capture_output=True, check=True, timeout=TIMEOUT_S).stdout
            (tokens / file).write_bytes(token)
            (tokens / file).chmod(0o600)

    def allowed(self):
        status = self.cluster.get(BUDGET).get("status", {})
        return status if status.get("disruptionsAllowed") else None

    def one_stands_by(self):
        texts = [process.page("/readyz")[1] for process in self.kubelet.processes.values()]
        assert sorted(text.split(":")[0].strip() for text in texts) == ["ok", "ok", "ok", "standby"], texts

    def trains(self):
        places = ",".join(f"127.0.0.1:{port}" for port in self.kubelet.ports.values())
        environment = {"RANK": "0", "WORLD_SIZE": "1", "AMPD_CACERT": str(self.folder / "tls/ca.crt"),
                       "AMPD_TOKEN_FILE": str(self.folder / "tokens/root.token")}
        data = manifests.ROOT / "examples/digits/digits.csv"
        with open(self.folder / "worker.log", "wb") as log:
            self.worker = subprocess.Popen([*DIE_WITH_PARENT, self.bin_dir / "digits", f"--connect={places}",
                                            f"--data={data}", "--steps=1000000", "--quiet"], env=environment,
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(lambda: self.step() > 0, "a step is applied", each=self.kubelet.look)

    def step(self):
        """The newest that any process has decided."""
        assert self.worker.poll() is None, (self.folder / "worker.log").read_text()[-2000:]
        steps = [0.0]
        for process in self.kubelet.processes.values():
            lines = process.page("/metrics")[1].splitlines()
            steps += [float(line.split()[-1]) for line in lines if line.startswith("ampd_model_decided_step{")]
        return max(steps)

    def rolls_over_standbys(self):
        before = {name: pod["metadata"]["uid"] for name, pod in self.cluster.pods("ampd").items()}
        path = self.manifests / "overlays/three-shards/ampd.conf"
        path.write_text(path.read_text() + "log-level: debug\n")
        self.kubelet.deleted.clear()
        self.kubelet.stood_by.clear()
        step, begun = self.step(), time.monotonic()
        self.apply_all("overlays/three-shards")

        def is_rolled():
            status = self.cluster.get(AMPD)["status"]
            return (status.get("updatedReplicas"), status.get("availableReplicas"), status["currentRevision"]) == (
                4, 4, status["updateRevision"])

        eventually(is_rolled, "all four are of the new revision", ROLL_S, each=self.kubelet.look)
        after = {name: pod["metadata"]["uid"] for name, pod in self.cluster.pods("ampd").items()}
        assert not set(before.values()) & set(after.values())
        assert [name for name, _ in self.kubelet.deleted] == PODS[::-1], self.kubelet.deleted
        for name, unready in self.kubelet.deleted:
            assert not any(other > name for other in unready), f"{name} was deleted before {unready} had come back"
        assert self.kubelet.stood_by & set(after.values()), "no new pod was ready while it stood by"
        self.one_stands_by()
        last = self.step()
        eventually(lambda: self.step() > last, "steps go on", each=self.kubelet.look)
        print(f"  rolled in {time.monotonic() - begun:.0f} s; steps {step:.0f} to {last:.0f} meanwhile, by one worker")
        passed("a_rolling_update_goes_on_over_pods_that_stand_by_in_order_while_a_worker_trains")

    def would_not_roll_without_standbyok(self):
        path = self.manifests / "base/statefulset.yaml"
        path.write_text(path.read_text().replace("/readyz?standbyok", "/readyz"))
        self.kubelet.deleted.clear()
        self.apply_all("overlays/three-shards")

        def stands_by():
            process = self.kubelet.processes.get(PODS[3])
            return self.kubelet.deleted and process and process.page("/readyz?standbyok")[0] == 200

        eventually(stands_by, "the first one stands by", each=self.kubelet.look)
        until = time.monotonic() + STANDS_STILL_S
        eventually(lambda: time.monotonic() > until, "", 2 * STANDS_STILL_S, each=self.kubelet.look)
        assert [name for name, _ in self.kubelet.deleted] == PODS[3:], self.kubelet.deleted
        passed("with_readyz_alone_it_stays_at_the_first_standby")

    def run(self):
        for part in (self.takes_everything, self.refuses_what_it_does_not_know, self.has_them_as_wanted,
                     self.has_all_pods_at_once, self.serves, self.trains, self.rolls_over_standbys,
                     self.would_not_roll_without_standbyok):
            part()

    def stop(self):
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
        self.kubelet.stop()
        self.cluster.stop()


def main(programs, bin_dir):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ampd-kubernetes-"))
    test = Test(programs, pathlib.Path(bin_dir), folder)
    try:
        test.run()
    except (AssertionError, Refused, OSError, subprocess.SubprocessError) as failure:
        sys.exit(f"[  FAILED  ] kubernetes: {failure}\nwhat it left is in {folder}")
    finally:
        test.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
