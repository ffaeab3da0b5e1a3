"""The files of deploy/ say what Dagster, Kubernetes and ECS understand, and agree with one another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
NEEDED = {
    "machine": "dagster_postgres",
    "ecs": "dagster_aws",
    "kubernetes": "dagster_k8s",
    "slurm": "dagster_postgres",
}
PLACES = tuple(NEEDED)
IN_AN_IMAGE = tuple(place for place in PLACES if place != "slurm")
KUBECONFIG = """\
{apiVersion: v1, kind: Config, current-context: none, users: [{name: none, user: {}}],
 contexts: [{name: none, context: {cluster: none, user: none}}],
 clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]}
"""


def settings(place: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / place / "dagster.yaml").read_text())


def variables(value: object) -> set[str]:
    """Names of the environment variables that settings ask for."""
    if isinstance(value, dict):
        own = {value["env"]} if set(value) == {"env"} else set()
        return own.union(*(variables(inner) for inner in value.values()))
    return set().union(*map(variables, value)) if isinstance(value, list) else set()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value for every variable that any of the settings ask for, and a region without an account."""
    for name in set().union(*(variables(settings(place)) for place in PLACES)):
        monkeypatch.setenv(
            name, "5432" if name.endswith("PORT") else f"some-{name.lower().replace('_', '-')}"
        )
    for name in ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "eu-west-1" if name.endswith("REGION") else "none")


def instance_parts(place: str) -> dict[str, Any]:
    """What Dagster makes of a dagster.yaml: its storage, launcher and logs, still to be opened."""
    for module in (NEEDED[place], "dagster_postgres"):
        pytest.importorskip(module, reason=f"needs {module}: the extra deploy")
    from dagster._core.instance.ref import InstanceRef

    ref = InstanceRef.from_dir(str(DEPLOY / place))
    return {
        "storage": ref.storage_data,
        "launcher": ref.run_launcher_data,
        "logs": ref.compute_logs_data,
    }


@pytest.mark.parametrize("place", PLACES)
def test_dagster_accepts_every_setting(place, environment):
    from dagster._config import process_config, resolve_to_config_type

    for part, data in instance_parts(place).items():
        kind = getattr(__import__(data.module_name, fromlist=[data.class_name]), data.class_name)
        checked = process_config(resolve_to_config_type(kind.config_type()), data.config_dict)
        assert checked.success, (part, checked.errors)


def test_the_launcher_and_the_logs_for_ecs_are_made(environment):
    parts = instance_parts("ecs")
    launcher, logs = parts["launcher"].rehydrate(), parts["logs"].rehydrate()
    assert (type(launcher).__name__, type(logs).__name__) == (
        "EcsRunLauncher",
        "S3ComputeLogManager",
    )
    cpu, memory = (int(launcher.run_resources[name]) for name in ("cpu", "memory"))
    assert (cpu, memory) in {(16384, 1024 * gib) for gib in range(32, 121, 8)}, (
        "Fargate knows no such size"
    )


@pytest.fixture
def job(tmp_path, environment) -> Any:
    """The Job that the launcher of deploy/kubernetes makes of a run."""
    pytest.importorskip("dagster_k8s", reason="needs dagster-k8s: the extra deploy")
    from dagster._serdes import ConfigurableClassData
    from dagster_k8s.job import construct_dagster_k8s_job

    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    chosen = settings("kubernetes")["run_launcher"]
    outside = {"load_incluster_config": False, "kubeconfig_file": str(tmp_path / "kubeconfig")}
    text = yaml.safe_dump(chosen["config"] | outside)
    launcher = ConfigurableClassData(chosen["module"], chosen["class"], text).rehydrate()
    run = dg.DagsterRun(job_name="corpus", run_id="b" * 32)
    context = launcher.get_container_context_for_run(run)
    config = context.get_k8s_job_config("registry/nanoset:1", launcher)
    return construct_dagster_k8s_job(
        config, ["run"], "a-run", user_defined_k8s_config=context.run_k8s_config
    )


def test_the_job_of_a_run_sees_the_project_the_history_and_nothing_of_the_cluster(job):
    pod = job.spec.template.spec
    container = pod.containers[0]
    assert container.image == "registry/nanoset:1"
    assert [source.config_map_ref.name for source in container.env_from] == ["nanoset-environment"]
    secret = next(variable for variable in container.env if variable.name == "DAGSTER_PG_PASSWORD")
    assert (secret.value_from.secret_key_ref.name, secret.value_from.secret_key_ref.key) == (
        "nanoset-postgres",
        "postgresql-password",
    )
    assert {mount.mount_path: mount.name for mount in container.volume_mounts} == {
        "/nanoset": "nanoset"
    }
    claims = {volume.name: volume.persistent_volume_claim for volume in pod.volumes}
    assert claims["nanoset"].claim_name == "nanoset"
    assert pod.automount_service_account_token is False
    assert pod.service_account_name == "nanoset-run"
    assert pod.security_context.run_as_non_root
    assert container.resources.requests["cpu"] == "16"
    assert job.spec.ttl_seconds_after_finished == 86400


def manifests() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    texts = [(DEPLOY / "kubernetes" / file).read_text() for file in kustomization["resources"]]
    return [manifest for text in texts for manifest in yaml.safe_load_all(text)]


def test_kubernetes_knows_every_field_of_the_manifests():
    pytest.importorskip("dagster_k8s", reason="needs dagster-k8s: the extra deploy")
    from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
    from kubernetes import client

    versions = {
        "v1": "V1",
        "apps/v1": "V1",
        "rbac.authorization.k8s.io/v1": "V1",
        "networking.k8s.io/v1": "V1",
    }
    for manifest in manifests():
        model = getattr(client, versions[manifest["apiVersion"]] + manifest["kind"])
        made = k8s_model_from_dict(model, k8s_snake_case_dict(model, manifest))
        assert made.metadata.name == manifest["metadata"]["name"]
        assert manifest["kind"] == "Namespace" or made.metadata.namespace == "nanoset"


def test_names_in_kubernetes_agree():
    found = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests()}
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    maps = {entry["name"]: entry for entry in kustomization["configMapGenerator"]}
    launcher = settings("kubernetes")["run_launcher"]["config"]
    assert ("ServiceAccount", launcher["service_account_name"]) in found
    assert (
        "PersistentVolumeClaim",
        launcher["volumes"][0]["persistentVolumeClaim"]["claimName"],
    ) in found
    assert {launcher["instance_config_map"], *launcher["env_config_maps"]} == set(maps)
    for file in maps["nanoset-instance"]["files"]:
        assert (DEPLOY / "kubernetes" / file).is_file()
    given = {literal.partition("=")[0] for literal in maps["nanoset-environment"]["literals"]}
    assert variables(settings("kubernetes")) == given - {"NANOSET_CONFIG"} | {"DAGSTER_PG_PASSWORD"}
    for manifest in manifests():
        if manifest["kind"] != "Deployment":
            continue
        pod = manifest["spec"]["template"]["spec"]
        container = pod["containers"][0]
        assert ("ServiceAccount", pod["serviceAccountName"]) in found
        assert container["envFrom"] == [{"configMapRef": {"name": "nanoset-environment"}}]
        assert (
            container["env"][0]["valueFrom"]["secretKeyRef"]["name"]
            == launcher["postgres_password_secret"]
        )
        assert {"configMap": {"name": "nanoset-instance"}, "name": "instance"} in pod["volumes"]
        current = [
            entry["value"] for entry in container["env"] if entry["name"] == "DAGSTER_CURRENT_IMAGE"
        ]
        assert current == [container["image"]] * (container["name"] == "code")


@pytest.mark.parametrize(("place", "hosts"), [("machine", "services"), ("kubernetes", "manifests")])
def test_the_webserver_finds_the_code_location(place, hosts):
    (entry,) = yaml.safe_load((DEPLOY / place / "workspace.yaml").read_text())["load_from"]
    server = entry["grpc_server"]
    if hosts == "services":
        names = set(yaml.safe_load((DEPLOY / place / "compose.yaml").read_text())["services"])
    else:
        services = [manifest for manifest in manifests() if manifest["kind"] == "Service"]
        names = {
            one["metadata"]["name"]
            for one in services
            if one["spec"]["ports"][0]["port"] == server["port"]
        }
    assert server["host"] in names
    assert server["location_name"] == "nanoset"


def test_ecs_takes_the_task_and_it_gives_what_the_settings_ask_for():
    botocore = pytest.importorskip("botocore.session", reason="needs the extra s3")
    from botocore.validate import ParamValidator

    task = json.loads((DEPLOY / "ecs" / "task-definition.json").read_text())
    model = botocore.get_session().get_service_model("ecs")
    report = ParamValidator().validate(
        task, model.operation_model("RegisterTaskDefinition").input_shape
    )
    assert not report.has_errors(), report.generate_report()
    containers = {container["name"]: container for container in task["containerDefinitions"]}
    assert set(containers) == {"code", "daemon", "webserver"}
    for container in containers.values():
        given = {entry["name"] for entry in container["environment"] + container["secrets"]}
        assert given - {"DAGSTER_CURRENT_IMAGE"} == variables(settings("ecs"))
        assert container["mountPoints"][0]["containerPath"] == "/nanoset"
    current = {entry["name"]: entry["value"] for entry in containers["code"]["environment"]}
    assert {current["DAGSTER_CURRENT_IMAGE"]} == {
        container["image"] for container in containers.values()
    }


def test_policies_name_operations_that_exist():
    botocore = pytest.importorskip("botocore.session", reason="needs the extra s3")
    session = botocore.get_session()
    asked: dict[str, set[str]] = {}
    for file in sorted((DEPLOY / "policies").glob("*.json")):
        for statement in json.loads(file.read_text())["Statement"]:
            actions = (
                statement["Action"]
                if isinstance(statement["Action"], list)
                else [statement["Action"]]
            )
            for service, _, action in (action.partition(":") for action in actions):
                asked.setdefault(service, set()).add(action)
    uploads = {"AbortMultipartUpload", "ListBucketMultipartUploads"}
    assert asked["s3"] == {"ListBucket", "GetObject", "PutObject", "DeleteObject"} | uploads
    for service in ("ecs", "ec2", "iam", "logs"):
        unknown = (
            asked[service] - set(session.get_service_model(service).operation_names) - {"PassRole"}
        )
        assert not unknown, f"{service} has no such operations: {unknown}"


def test_the_image_holds_what_is_there_and_versions_that_belong_together():
    text = (DEPLOY / "Dockerfile").read_text()
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from=)(.+)$", text, re.M)
        for source in line.split()[:-1]
    ]
    for source in sources:
        for place in IN_AN_IMAGE if "${SETTINGS}" in source else ("",):
            assert (REPOSITORY / source.replace("${SETTINGS}", place)).exists(), source
    assert re.search(r"^USER (?!root)", text, re.M)
    pins = dict(
        re.findall(r"^([\w-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.M)
    )
    assert pins["dagster-postgres"] == pins["dagster-k8s"] == pins["dagster-aws"]


def kubernetes_objects() -> list[dict[str, Any]]:
    folder = DEPLOY / "kubernetes"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [found for name in names for found in yaml.safe_load_all((folder / name).read_text())]


def policies() -> list[dict[str, Any]]:
    return [found["spec"] for found in kubernetes_objects() if found["kind"] == "NetworkPolicy"]


def test_nothing_in_the_namespace_can_be_reached_unless_it_is_allowed():
    denied = [policy for policy in policies() if policy["podSelector"] == {}]
    assert [policy["policyTypes"] for policy in denied] == [["Ingress"]]
    assert not any("ingress" in policy for policy in denied)


@pytest.mark.parametrize(
    ("app", "port", "readers"),
    [
        ("nanoset-code", 4000, {"nanoset-daemon", "nanoset-webserver"}),
        ("nanoset-webserver", 3000, {"nanoset-login"}),
    ],
)
def test_each_service_without_a_login_is_open_to_its_readers_alone(app, port, readers):
    services = {
        found["metadata"]["name"]: found
        for found in kubernetes_objects()
        if found["kind"] == "Service"
    }
    assert services[app]["spec"]["ports"] == [{"port": port, "targetPort": port}]
    (policy,) = [
        found for found in policies() if found["podSelector"].get("matchLabels") == {"app": app}
    ]
    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    selector = source["podSelector"]
    named = set(selector.get("matchLabels", {}).values())
    named |= {value for one in selector.get("matchExpressions", ()) for value in one["values"]}
    assert named == readers
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]


def test_images_can_be_pinned_by_digest():
    assert "FROM ${PYTHON_IMAGE}" in (DEPLOY / "Dockerfile").read_text()
    services = yaml.safe_load((DEPLOY / "machine" / "compose.yaml").read_text())["services"]
    assert services["postgres"]["image"].startswith("${POSTGRES_IMAGE:-")
