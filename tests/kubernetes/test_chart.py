"""The Helm chart, in a real API server: rendered, checked strictly, installed, and its pods begun by a scheduler."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.cli.reference.settings import kinds
from services.kit.access import new_token
from services.kit.kafka import KafkaSettings
from services.kit.settings import load
from services.kit.topics import declared
from services.kit.wait import until
from tests.kubernetes.built import operator_resources, programs
from tests.kubernetes.chart import CHART, LEAST, SPACE, add_namespace, helm, release, rendered, sets
from tests.kubernetes.control_plane import Cluster, control_plane
from tests.kubernetes.schemas import write_schemas

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]
EVERYTHING = Path(__file__).with_name("values.yaml")
LIVE = ["-f", str(CHART / "live.yaml"), *sets("tokens.existingSecret=hindcast-tokens", "live.prometheus=http://p:9090")]
WATCHES = ("live.enabled=true", "live.prometheus=http://prometheus:9090")
FLAGS = {"least": sets(*LEAST), "everything": ["-f", str(EVERYTHING)], "live": LIVE}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with control_plane(["n1", "n2", "n3"]) as cluster:
        definitions = operator_resources()
        for definition in definitions:
            cluster.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        add_namespace(cluster)
        account = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
        until(
            lambda: cluster.api.get(account).is_success and all(_served(cluster, one) for one in definitions),
            what="the custom resources and the namespace's account",
        )
        yield cluster


def _served(cluster: Cluster, definition: dict[str, Any]) -> bool:
    """Whether the server knows the resource that it was taught."""
    spec = definition["spec"]
    listed = cluster.api.get(f"/apis/{spec['group']}/{spec['versions'][0]['name']}")
    return listed.is_success and spec["names"]["plural"] in {one["name"] for one in listed.json()["resources"]}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_helm_finds_nothing_wrong_and_kubeconform_neither(flags: list[str], tmp_path: Path) -> None:
    linted = helm("lint", str(CHART), "--strict", *flags)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    text = yaml.safe_dump_all(rendered(*flags, "--set", "strimzi.enabled=false"))
    write_schemas(tmp_path)
    conform = (
        programs() / "kubeconform",
        "-strict",
        "-summary",
        "-schema-location",
        f"{tmp_path}/{{{{.ResourceKind}}}}.json",
    )
    done = subprocess.run((*conform, "-"), input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, "Invalid: 0, Errors: 0, Skipped: 0" in done.stdout) == (0, True), done.stdout
    mistyped = text.replace("readinessProbe", "redinessProbe")
    done = subprocess.run((*conform, "-"), input=mistyped, capture_output=True, text=True, check=False)
    assert "redinessProbe" in done.stdout


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["kafka.bootstrap=kafka"], "kafka/bootstrap"),
        (["detect.replicas=2"], "detect.persistence.existingClaim"),
        (["image.digest=latest"], "image/digest"),
        (["gateway.enbled=true"], "enbled"),
        (["sinks.prometheus.url=http://user:secret@prometheus:9090"], "sinks/prometheus/url"),
        (["monitoring.alertmanagerConfig=true"], "monitoring.webhookSecret.name"),
        (["kafka.bootstrap="], "kafka.bootstrap is needed by api, detect, notify, replay"),
        (["live.enabled=true"], "live.prometheus is needed"),
        (["live.prometheus=http://user:secret@prometheus:9090"], "live/prometheus"),
        (["live.alertmanager=alertmanager"], "live/alertmanager"),
        (["live.options.lookback=yesterday"], "live/options/lookback"),
        (["live.options.findings=f.jsonl"], "findings"),
        (["live.optionFiles.token.secret=s", "live.optionFiles.token.key=k"], "live/optionFiles"),
        (["live.optionFiles.token-file.key=k"], "live/optionFiles/token-file"),
        ([*WATCHES, "live.kubernetes=false", "live.nodeConditions=true"], "it needs live.kubernetes"),
        ([*WATCHES, "live.options.slurm=http://slurm:6820"], "set live.kubernetes to false"),
    ],
)
def test_values_that_cannot_be_right_are_refused(values: list[str], words: str) -> None:
    done = helm("template", "hindcast", str(CHART), *sets(*LEAST, *values))
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_every_object_is_as_the_api_server_has_it(cluster: Cluster, flags: list[str]) -> None:
    for document in rendered(*flags):
        cluster.post(cluster.path_of(document, SPACE), document, dryRun="All")


def test_strimzi_gets_every_topic_and_a_user_who_may_use_them() -> None:
    flags = sets(*LEAST, "strimzi.enabled=true", "strimzi.cluster=kafka", "strimzi.namespace=kafka")
    made = [one for one in rendered(*flags) if one["apiVersion"] == "kafka.strimzi.io/v1"]
    found = {one["metadata"]["name"]: one["spec"]["partitions"] for one in made if one["kind"] == "KafkaTopic"}
    plan = declared()
    assert found == {
        name: KafkaSettings().unit_partitions if topic.kind == "unit" else 1 for name, topic in plan.topics.items()
    }
    (user,) = (one for one in made if one["kind"] == "KafkaUser")
    rights = user["spec"]["authorization"]["acls"]
    assert {one["resource"]["name"] for one in rights} == {*plan.topics, "hindcast-"}
    assert {one["metadata"]["labels"]["strimzi.io/cluster"] for one in made} == {"kafka"}


def test_a_mistyped_field_of_a_rule_is_refused(cluster: Cluster) -> None:
    rule = next(one for one in rendered(*FLAGS["everything"]) if one["kind"] == "PrometheusRule")
    rule["spec"]["groups"][0]["rules"][0]["experssion"] = "up"
    with pytest.raises(AssertionError, match="experssion"):
        cluster.post(cluster.path_of(rule, SPACE), rule, dryRun="All")


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_every_setting_is_one_of_a_service_and_is_taken(
    cluster: Cluster, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_prefix = {kind.model_config["env_prefix"]: kind for kind in kinds()}
    secret, token = new_token("test", "operator")
    contents = {"TOKENS_FILE": yaml.safe_dump([token.model_dump()]), "CAFILE": cluster.ca_file.read_text()}
    containers = checked = 0
    for document in rendered(*flags):
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            containers += 1
            settings = {one["name"]: one.get("value", "hindcast-detect-0") for one in container["env"]}
            with monkeypatch.context() as environment:
                for name, value in settings.items():
                    file = value.startswith("/files/")
                    if file:
                        suffix = next((one for one in contents if name.endswith(one)), "")
                        (tmp_path / name).write_text(contents.get(suffix, secret))
                    environment.setenv(name, str(tmp_path / name) if file else value)
                used = {prefix for prefix in by_prefix if any(name.startswith(prefix) for name in settings)}
                assert all(any(name.startswith(prefix) for prefix in used) for name in settings), container["name"]
                for prefix in used:
                    load(by_prefix[prefix])
                    checked += 1
    assert 0 < containers <= checked


def test_helm_installs_it_and_every_pod_begins(cluster: Cluster) -> None:
    for name in ("recordings", "detect"):
        claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        document = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim}
        cluster.post(cluster.path_of(document, SPACE), document)
    notes = release(cluster, "install", *FLAGS["everything"])
    assert "service/hindcast-live 8490" in notes
    pods = cluster.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    parts = sorted(pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in pods)
    several = ["detect", "sink-prometheus"]
    assert parts == sorted(
        ["api", "detect", "gateway", "live", "notify", "replay", "sink-prometheus", "sink-receive", *several]
    )
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    # Each service leads to its pods, and each budget and each policy is of some.
    slices = cluster.get(f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices")["items"]
    assert sum(len(one["endpoints"]) for one in slices) == len(pods)
    for group, kind in (("policy/v1", "poddisruptionbudgets"), ("networking.k8s.io/v1", "networkpolicies")):
        assert len(cluster.get(f"/apis/{group}/namespaces/{SPACE}/{kind}")["items"]) == len(set(parts))
    release(cluster, "upgrade", *FLAGS["everything"], *sets("image.digest=", "image.tag=0.1.1"))
    pods = cluster.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    live = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    assert {pod["spec"]["containers"][0]["image"] for pod in live} == {"registry.example/hindcast:0.1.1"}
    release(cluster, "uninstall")
    # What was kept is kept.
    claims = cluster.get(f"/api/v1/namespaces/{SPACE}/persistentvolumeclaims")["items"]
    kept = sorted(one["metadata"]["name"] for one in claims)
    assert kept == ["detect", "hindcast-live", "recordings", "state-hindcast-api-0", "state-hindcast-replay-0"]
    assert not [one for kind in ("clusterroles", "clusterrolebindings") for one in _named(cluster, kind)]


def _named(cluster: Cluster, kind: str) -> list[str]:
    """Return what there is of a kind of rights that is called as the release is."""
    items = cluster.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}")["items"]
    return [one["metadata"]["name"] for one in items if "hindcast" in one["metadata"]["name"]]
