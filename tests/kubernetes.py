"""The chart and the kustomize folders make what Kubernetes takes: kubernetes.py [write], with helm-python-sdk and
kubernetes-validate of PyPI.

The chart is rendered by Helm's own code and everything is checked against Kubernetes' schemas, strictly: no unknown field.
ServiceMonitor is a type of Prometheus' operator, of which there is no schema here: its fields are compared with what the
operator's documentation names. The base of kustomize is what the chart makes by default, and `write` writes it. Kustomize
itself is not run: its lists of files are read, and its patches merged, here.
"""

import copy
import sys
from pathlib import Path

import helm_python
import kubernetes_validate
import yaml
from helm_python.chart import Chart

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
SECRET = {"secret": {"existingSecret": "strait"}}
VERSIONS = ("1.29", "1.34")
CASES = {
    "secret": SECRET,
    "certificates, own network": {"tls": {"existingSecret": "strait-tls"}, "hostNetwork": False},
    "gpus": SECRET | {"hostIPC": True, "runtimeClassName": "nvidia", "gpus": {"visible": True}, "deviceResources": {"nvidia.com/gpu": 1}},
    "rdma": SECRET
    | {"rdma": {"enabled": True}, "deviceResources": {"rdma/hca": 1}, "networkPolicy": {"extraPorts": [{"port": 7360}]}},
    "all the rest": SECRET
    | {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"gpu": "h100"},
        "affinity": {"nodeAffinity": {}},
        "socket": {"hostPath": ""},
        "extraContainers": [{"name": "worker", "image": "worker"}],
        "imagePullSecrets": [{"name": "registry"}],
        "podAnnotations": {"a": "b"},
        "priorityClassName": "system-node-critical",
    },
}


def check(document: dict, what: str) -> None:
    kind = document["kind"]
    if kind == "ServiceMonitor":
        assert set(document["spec"]) == {"selector", "endpoints"}, what
        assert set(document["spec"]["endpoints"][0]) <= {"port", "path", "interval"}, what
        return
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)
    if kind == "DaemonSet":
        check_pod(document["spec"]["template"]["spec"], what)


def check_pod(pod: dict, what: str) -> None:
    """What schemas do not see: names that have to fit each other."""
    volumes = {volume["name"] for volume in pod["volumes"]}
    daemon = pod["containers"][0]
    for container in [*pod["containers"], *pod["initContainers"]]:
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounted <= volumes, (what, mounted - volumes)
    ports = {port["name"] for port in daemon["ports"]}
    probes = [daemon[probe] for probe in ("readinessProbe", "livenessProbe", "startupProbe")]
    assert all((probe.get("httpGet") or probe["tcpSocket"])["port"] in ports for probe in probes), what
    security = daemon["securityContext"]
    assert security["runAsUser"] == 7350 and security["readOnlyRootFilesystem"] and security["capabilities"]["drop"] == ["ALL"]


def merged(target, patch):
    """A strategic merge of maps; lists of things with names are merged by them."""
    if isinstance(target, dict) and isinstance(patch, dict):
        return {key: merged(target.get(key), patch[key]) if key in patch else target[key] for key in {*target, *patch}}
    if isinstance(target, list) and patch and isinstance(patch[0], dict) and "name" in patch[0]:
        names = {item["name"]: item for item in copy.deepcopy(target)}
        for item in patch:
            names[item["name"]] = merged(names.get(item["name"]), item)
        return list(names.values())
    return patch


def kustomized(folder: Path) -> list[dict]:
    top = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(top) <= {"apiVersion", "kind", "namespace", "resources", "patches", "configMapGenerator"}, top
    documents = []
    for name in top["resources"]:
        path = folder / name
        documents += kustomized(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in top.get("patches", []):
        change = yaml.safe_load((folder / patch["path"]).read_text())
        (index,) = [
            i for i, d in enumerate(documents) if d["kind"] == change["kind"] and d["metadata"]["name"] == change["metadata"]["name"]
        ]
        documents[index] = merged(documents[index], change)
    for generator in top.get("configMapGenerator", []):
        assert all((folder / name).is_file() for name in generator["files"])
    return documents


def without_helm(node):
    """Of what the chart makes: labels and the sum of the configuration are Helm's own."""
    if isinstance(node, list):
        return [without_helm(item) for item in node]
    if not isinstance(node, dict):
        return node
    own = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "checksum/config")
    kept = {key: without_helm(value) for key, value in node.items() if key not in own}
    return {key: value for key, value in kept.items() if not (key == "annotations" and value == {})}


def base_of(chart: Chart) -> dict[str, list[dict]]:
    """The files of the base, by their names."""
    manifests = chart.render(SECRET, name="strait", namespace="strait")
    files = {Path(name).name: [d for d in yaml.safe_load_all(text) if d] for name, text in manifests.items() if name.endswith(".yaml")}
    return {name: without_helm(documents) for name, documents in files.items()}


def main() -> None:
    rendered = 0
    base = DEPLOY / "kustomize/base"
    with Chart.load(DEPLOY / "helm/strait") as chart:
        for name, documents in base_of(chart).items():
            if sys.argv[1:] == ["write"]:
                text = yaml.safe_dump_all(documents, sort_keys=False)
                (base / name).write_text(f"# What the chart makes by default: tests/kubernetes.py write.\n{text}")
            assert list(yaml.safe_load_all((base / name).read_text())) == documents, f"kustomize/base/{name} is not the chart's"
        for what, values in CASES.items():
            manifests = chart.render(values, name="strait", namespace="strait")
            kinds = []
            for name, text in manifests.items():
                for document in yaml.safe_load_all(text) if name.endswith(".yaml") else ():
                    if document:
                        check(document, f"{what}: {name}")
                        kinds.append(document["kind"])
                        rendered += 1
            assert {"DaemonSet", "ConfigMap", "Service", "NetworkPolicy"} <= set(kinds), (what, kinds)
            assert ("ServiceMonitor" in kinds) == bool(values.get("serviceMonitor")), what
            pod = next(d for t in manifests.values() for d in yaml.safe_load_all(t) if d and d["kind"] == "DaemonSet")
            container = pod["spec"]["template"]["spec"]["containers"][0]
            assert values.get("deviceResources", {}).items() <= container["resources"]["limits"].items(), what
        for wrong in ({}, SECRET | {"tls": {"existingSecret": "b"}}):
            try:
                chart.render(wrong, name="strait", namespace="strait")
            except helm_python.HelmError as error:
                assert "existingSecret" in str(error)
            else:
                raise AssertionError(f"rendered: {wrong}")
    for overlay in ("base", "gpu"):
        documents = kustomized(DEPLOY / "kustomize" / overlay)
        for document in documents:
            check(document, f"kustomize {overlay}")
            rendered += 1
    wrong = copy.deepcopy(documents[1])
    assert wrong["kind"] == "DaemonSet"
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbes"] = {}
    try:
        check(wrong, "a field that there is not")
    except kubernetes_validate.ValidationError:
        pass
    else:
        raise AssertionError("an unknown field was not noticed")
    gpu = next(d for d in documents if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert gpu["hostIPC"] and gpu["runtimeClassName"] == "nvidia" and gpu["containers"][0]["args"]
    print(f"{rendered} objects of {len(CASES)} settings of the chart and two kustomize folders are valid for Kubernetes {VERSIONS}")


if __name__ == "__main__":
    main()
