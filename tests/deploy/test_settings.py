"""The files of deploy/ are valid for Dagster, Kubernetes and ECS, and agree with each other."""

from __future__ import annotations

import importlib
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
REQUIRED_MODULES = {
    "machine": "dagster_postgres",
    "ecs": "dagster_aws",
    "kubernetes": "dagster_k8s",
    "slurm": "dagster_postgres",
}
"""Folder of deploy/ → the module that its dagster.yaml names."""
IMAGE_FOLDERS = ["machine", "ecs", "kubernetes"]
"""Folders of deploy/ whose settings an image may contain."""
KUBECONFIG = """\
{apiVersion: v1, kind: Config, current-context: none, users: [{name: none, user: {}}],
 contexts: [{name: none, context: {cluster: none, user: none}}],
 clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]}
"""
"""The address of a cluster that nobody can reach."""


def read_settings(folder: str) -> dict[str, Any]:
    """Return the settings of Dagster in a folder of deploy/."""
    settings: dict[str, Any] = yaml.safe_load((DEPLOY / folder / "dagster.yaml").read_text())
    return settings


def variables_in(value: object) -> set[str]:
    """Return the names of the environment variables that settings refer to, as {env: NAME}."""
    if isinstance(value, dict):
        if set(value) == {"env"}:
            return {value["env"]}
        inner_values = list(value.values())
    elif isinstance(value, list):
        inner_values = value
    else:
        return set()

    names: set[str] = set()
    for inner_value in inner_values:
        names |= variables_in(inner_value)
    return names


@pytest.fixture
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a value to every variable that any settings refer to, and a region without an account."""
    for folder in REQUIRED_MODULES:
        for name in variables_in(read_settings(folder)):
            if name.endswith("PORT"):
                monkeypatch.setenv(name, "5432")
            else:
                monkeypatch.setenv(name, f"some-{name.lower().replace('_', '-')}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")


# dagster.yaml


class InstanceParts(NamedTuple):
    """What Dagster makes of a dagster.yaml, still to be opened."""

    storage: Any
    launcher: Any
    logs: Any


def read_instance_parts(folder: str) -> InstanceParts:
    """Return what Dagster makes of the dagster.yaml in a folder of deploy/."""
    for module in (REQUIRED_MODULES[folder], "dagster_postgres"):
        pytest.importorskip(module, reason=f"needs {module}: the extra deploy")
    from dagster._core.instance.ref import InstanceRef

    ref = InstanceRef.from_dir(str(DEPLOY / folder))
    return InstanceParts(ref.storage_data, ref.run_launcher_data, ref.compute_logs_data)


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("part", InstanceParts._fields)
@pytest.mark.parametrize("folder", REQUIRED_MODULES)
def test_dagster_accepts_the_settings(folder, part):
    from dagster._config import process_config, resolve_to_config_type

    data = getattr(read_instance_parts(folder), part)
    part_class = getattr(importlib.import_module(data.module_name), data.class_name)

    result = process_config(resolve_to_config_type(part_class.config_type()), data.config_dict)

    assert result.success, result.errors


@pytest.mark.usefixtures("_environment")
def test_the_settings_for_ecs_launch_tasks_and_store_logs_in_s3():
    parts = read_instance_parts("ecs")

    assert type(parts.launcher.rehydrate()).__name__ == "EcsRunLauncher"
    assert type(parts.logs.rehydrate()).__name__ == "S3ComputeLogManager"


def test_fargate_offers_the_size_of_a_run():
    resources = read_settings("ecs")["run_launcher"]["config"]["run_resources"]
    mebibytes_offered = {1024 * gibibytes for gibibytes in range(32, 121, 8)}

    assert int(resources["cpu"]) == 16384
    assert int(resources["memory"]) in mebibytes_offered


# The Kubernetes job of a run


@pytest.fixture
def run_job(tmp_path: Path, _environment: None) -> Any:
    """The Kubernetes job that the launcher of deploy/kubernetes makes of a run."""
    pytest.importorskip("dagster_k8s", reason="needs dagster-k8s: the extra deploy")
    from dagster._serdes import ConfigurableClassData
    from dagster_k8s.job import construct_dagster_k8s_job

    # The launcher of the settings, but outside of a cluster.
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    settings = read_settings("kubernetes")["run_launcher"]
    config = settings["config"] | {
        "load_incluster_config": False,
        "kubeconfig_file": str(kubeconfig),
    }
    launcher = ConfigurableClassData(
        settings["module"], settings["class"], yaml.safe_dump(config)
    ).rehydrate()

    run = dg.DagsterRun(job_name="corpus", run_id="b" * 32)
    context = launcher.get_container_context_for_run(run)
    return construct_dagster_k8s_job(
        context.get_k8s_job_config("registry/nanoset:1", launcher),
        ["run"],
        "a-run",
        user_defined_k8s_config=context.run_k8s_config,
    )


@pytest.fixture
def run_pod(run_job: Any) -> Any:
    """The pod of the job."""
    return run_job.spec.template.spec


def test_a_run_uses_the_image_of_the_code_location(run_pod):
    assert run_pod.containers[0].image == "registry/nanoset:1"


def test_a_run_has_the_environment_and_the_password_of_the_history(run_pod):
    container = run_pod.containers[0]
    variable_by_name = {variable.name: variable for variable in container.env}
    secret = variable_by_name["DAGSTER_PG_PASSWORD"].value_from.secret_key_ref

    assert [source.config_map_ref.name for source in container.env_from] == ["nanoset-environment"]
    assert secret.name == "nanoset-postgres"
    assert secret.key == "postgresql-password"


def test_a_run_mounts_the_volume_of_the_project_and_no_other(run_pod):
    mounts = {mount.mount_path: mount.name for mount in run_pod.containers[0].volume_mounts}
    claim_by_volume = {volume.name: volume.persistent_volume_claim for volume in run_pod.volumes}

    assert mounts == {"/nanoset": "nanoset"}
    assert claim_by_volume["nanoset"].claim_name == "nanoset"


def test_a_run_has_no_access_to_the_cluster_and_is_not_root(run_pod):
    assert run_pod.service_account_name == "nanoset-run"
    assert run_pod.automount_service_account_token is False
    assert run_pod.security_context.run_as_non_root


def test_a_run_reserves_processors_and_its_job_is_deleted_after_a_day(run_job, run_pod):
    assert run_pod.containers[0].resources.requests["cpu"] == "16"
    assert run_job.spec.ttl_seconds_after_finished == 24 * 60 * 60


# Kubernetes manifests


def read_kustomization() -> dict[str, Any]:
    """Return the kustomization.yaml."""
    kustomization: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return kustomization


def read_manifests(kind: str | None = None) -> list[dict[str, Any]]:
    """Return the manifests that kustomization.yaml lists, all or those of one kind."""
    manifests: list[dict[str, Any]] = []
    for file_name in read_kustomization()["resources"]:
        manifests.extend(yaml.safe_load_all((KUBERNETES / file_name).read_text()))
    if kind is None:
        return manifests
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def names_of_kind(kind: str) -> set[str]:
    """Return the names of all manifests of a kind."""
    return {manifest["metadata"]["name"] for manifest in read_manifests(kind)}


def deployment_pods() -> list[dict[str, Any]]:
    """Return the pods of all deployments."""
    return [manifest["spec"]["template"]["spec"] for manifest in read_manifests("Deployment")]


def config_maps() -> dict[str, dict[str, Any]]:
    """Return the generated config maps, by name."""
    return {entry["name"]: entry for entry in read_kustomization()["configMapGenerator"]}


@pytest.fixture
def launcher_config() -> dict[str, Any]:
    """The settings of the launcher of runs in Kubernetes."""
    config: dict[str, Any] = read_settings("kubernetes")["run_launcher"]["config"]
    return config


@pytest.mark.parametrize("manifest", read_manifests(), ids=lambda value: value["metadata"]["name"])
def test_kubernetes_knows_every_field_of_a_manifest(manifest):
    pytest.importorskip("dagster_k8s", reason="needs dagster-k8s: the extra deploy")
    from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
    from kubernetes import client

    model_prefixes = {
        "v1": "V1",
        "apps/v1": "V1",
        "rbac.authorization.k8s.io/v1": "V1",
        "networking.k8s.io/v1": "V1",
    }
    model = getattr(client, model_prefixes[manifest["apiVersion"]] + manifest["kind"])

    parsed = k8s_model_from_dict(model, k8s_snake_case_dict(model, manifest))

    assert parsed.metadata.name == manifest["metadata"]["name"]
    if manifest["kind"] != "Namespace":
        assert parsed.metadata.namespace == "nanoset"


def test_the_launcher_names_an_account_and_a_claim_that_exist(launcher_config):
    claim = launcher_config["volumes"][0]["persistentVolumeClaim"]["claimName"]

    assert launcher_config["service_account_name"] in names_of_kind("ServiceAccount")
    assert claim in names_of_kind("PersistentVolumeClaim")


def test_the_launcher_names_the_generated_config_maps(launcher_config):
    names = {launcher_config["instance_config_map"], *launcher_config["env_config_maps"]}

    assert names == config_maps().keys()


def test_the_files_of_the_config_map_of_the_instance_exist():
    for file_name in config_maps()["nanoset-instance"]["files"]:
        assert (KUBERNETES / file_name).is_file()


def test_the_environment_in_kubernetes_has_exactly_the_variables_of_the_settings():
    literals = config_maps()["nanoset-environment"]["literals"]
    environment = {literal.partition("=")[0] for literal in literals}

    # The password is a secret, and the path of the settings is for nanoset.
    expected = environment - {"NANOSET_CONFIG"} | {"DAGSTER_PG_PASSWORD"}
    assert variables_in(read_settings("kubernetes")) == expected


def test_every_deployment_has_an_account_that_exists():
    accounts = names_of_kind("ServiceAccount")

    for pod in deployment_pods():
        assert pod["serviceAccountName"] in accounts


def test_every_deployment_has_the_environment_and_the_password_of_the_launcher(launcher_config):
    secret_name = launcher_config["postgres_password_secret"]

    for pod in deployment_pods():
        container = pod["containers"][0]
        assert container["envFrom"] == [{"configMapRef": {"name": "nanoset-environment"}}]
        assert container["env"][0]["valueFrom"]["secretKeyRef"]["name"] == secret_name


def test_every_deployment_has_the_settings_of_the_instance():
    for pod in deployment_pods():
        assert {"configMap": {"name": "nanoset-instance"}, "name": "instance"} in pod["volumes"]


def test_only_the_code_server_says_which_image_runs_use():
    images_by_container = {}
    for pod in deployment_pods():
        container = pod["containers"][0]
        images = [
            entry["value"] for entry in container["env"] if entry["name"] == "DAGSTER_CURRENT_IMAGE"
        ]
        images_by_container[container["name"]] = images
        assert images in ([], [container["image"]])

    containers_with_image = [name for name, images in images_by_container.items() if images]
    assert containers_with_image == ["code"]


def services_on_machine() -> set[str]:
    """Return the services of the Docker Compose file."""
    compose = yaml.safe_load((DEPLOY / "machine" / "compose.yaml").read_text())
    return set(compose["services"])


def read_grpc_server(folder: str) -> dict[str, Any]:
    """Return the only code location of a workspace.yaml."""
    (entry,) = yaml.safe_load((DEPLOY / folder / "workspace.yaml").read_text())["load_from"]
    server: dict[str, Any] = entry["grpc_server"]
    return server


def test_the_webserver_on_a_machine_finds_the_code_server():
    server = read_grpc_server("machine")

    assert server["host"] in services_on_machine()
    assert server["location_name"] == "nanoset"


def test_the_webserver_in_kubernetes_finds_the_code_server():
    server = read_grpc_server("kubernetes")

    names = set()
    for service in read_manifests("Service"):
        if service["spec"]["ports"][0]["port"] == server["port"]:
            names.add(service["metadata"]["name"])
    assert server["host"] in names
    assert server["location_name"] == "nanoset"


# Network policies


def test_nothing_in_the_namespace_can_be_reached_unless_it_is_allowed():
    policies = [manifest["spec"] for manifest in read_manifests("NetworkPolicy")]

    (policy_of_all_pods,) = [policy for policy in policies if policy["podSelector"] == {}]

    assert policy_of_all_pods["policyTypes"] == ["Ingress"]
    assert "ingress" not in policy_of_all_pods


def apps_selected_by(selector: dict[str, Any]) -> set[str]:
    """Return the labels of the pods that a selector names."""
    apps = set(selector.get("matchLabels", {}).values())
    for expression in selector.get("matchExpressions", []):
        apps.update(expression["values"])
    return apps


@pytest.mark.parametrize(
    ("app", "port", "readers"),
    [
        pytest.param(
            "nanoset-code", 4000, {"nanoset-daemon", "nanoset-webserver"}, id="the code server"
        ),
        pytest.param("nanoset-webserver", 3000, {"nanoset-login"}, id="the webserver"),
    ],
)
def test_a_service_without_a_login_can_be_reached_by_its_readers_alone(app, port, readers):
    policies = []
    for manifest in read_manifests("NetworkPolicy"):
        if manifest["spec"]["podSelector"].get("matchLabels") == {"app": app}:
            policies.append(manifest["spec"])

    (policy,) = policies
    (rule,) = policy["ingress"]
    (source,) = rule["from"]

    assert apps_selected_by(source["podSelector"]) == readers
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]


@pytest.mark.parametrize(("app", "port"), [("nanoset-code", 4000), ("nanoset-webserver", 3000)])
def test_a_service_is_at_the_port_of_its_policy(app, port):
    ports_by_service = {}
    for service in read_manifests("Service"):
        ports_by_service[service["metadata"]["name"]] = service["spec"]["ports"]

    assert ports_by_service[app] == [{"port": port, "targetPort": port}]


# ECS


@pytest.fixture
def task_definition() -> dict[str, Any]:
    """The task of the platform."""
    task: dict[str, Any] = json.loads((DEPLOY / "ecs" / "task-definition.json").read_text())
    return task


@pytest.fixture
def containers(task_definition: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The containers of the task, by name."""
    return {container["name"]: container for container in task_definition["containerDefinitions"]}


def test_ecs_accepts_the_task_definition(task_definition):
    botocore = pytest.importorskip("botocore.session", reason="needs the extra s3")
    from botocore.validate import ParamValidator

    model = botocore.get_session().get_service_model("ecs")
    input_shape = model.operation_model("RegisterTaskDefinition").input_shape

    report = ParamValidator().validate(task_definition, input_shape)

    assert not report.has_errors(), report.generate_report()


def test_the_task_runs_code_server_daemon_and_webserver(containers):
    assert containers.keys() == {"code", "daemon", "webserver"}


def test_every_container_has_exactly_the_variables_of_the_settings(containers):
    variables = variables_in(read_settings("ecs"))

    for container in containers.values():
        entries = [*container["environment"], *container["secrets"]]
        names = {entry["name"] for entry in entries}
        assert names - {"DAGSTER_CURRENT_IMAGE"} == variables


def test_every_container_mounts_the_project(containers):
    for container in containers.values():
        assert container["mountPoints"][0]["containerPath"] == "/nanoset"


def test_runs_use_the_image_of_all_containers(containers):
    environment = {entry["name"]: entry["value"] for entry in containers["code"]["environment"]}

    images = {container["image"] for container in containers.values()}

    assert images == {environment["DAGSTER_CURRENT_IMAGE"]}


# Policies of AWS


@pytest.fixture
def actions_by_service() -> dict[str, set[str]]:
    """The actions that the policies of AWS allow, by service."""
    actions_by_service: dict[str, set[str]] = defaultdict(set)
    for file in sorted((DEPLOY / "policies").glob("*.json")):
        for statement in json.loads(file.read_text())["Statement"]:
            actions = statement["Action"]
            if isinstance(actions, str):
                actions = [actions]
            for name in actions:
                service, _, action = name.partition(":")
                actions_by_service[service].add(action)
    return actions_by_service


def test_policies_allow_only_the_actions_of_s3_that_nanoset_needs(actions_by_service):
    assert actions_by_service["s3"] == {
        "ListBucket",
        "GetObject",
        "PutObject",
        "DeleteObject",
        "AbortMultipartUpload",
        "ListBucketMultipartUploads",
    }


@pytest.mark.parametrize("service", ["ecs", "ec2", "iam", "logs"])
def test_policies_name_actions_that_exist(actions_by_service, service):
    botocore = pytest.importorskip("botocore.session", reason="needs the extra s3")
    operations = set(botocore.get_session().get_service_model(service).operation_names)

    # PassRole is a permission without an operation.
    assert actions_by_service[service] <= operations | {"PassRole"}


# The image


@pytest.fixture
def dockerfile() -> str:
    """The content of the Dockerfile."""
    return (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize("folder", IMAGE_FOLDERS)
def test_everything_that_the_image_copies_exists(dockerfile, folder):
    sources = []
    # Lines with --from copy from another stage of the image.
    for line in re.findall(r"^COPY (?!--from=)(.+)$", dockerfile, re.MULTILINE):
        *line_sources, _target = line.split()
        sources.extend(line_sources)

    assert sources
    for source in sources:
        assert (REPOSITORY / source.replace("${SETTINGS}", folder)).exists(), source


def test_the_image_does_not_run_as_root(dockerfile):
    assert re.search(r"^USER (?!root)", dockerfile, re.MULTILINE)


def test_the_versions_of_dagsters_libraries_belong_together():
    text = (REPOSITORY / "constraints.txt").read_text()
    versions = dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.MULTILINE))

    assert versions["dagster-postgres"] == versions["dagster-k8s"]
    assert versions["dagster-postgres"] == versions["dagster-aws"]


def test_images_can_be_pinned_by_digest(dockerfile):
    compose = yaml.safe_load((DEPLOY / "machine" / "compose.yaml").read_text())

    assert "FROM ${PYTHON_IMAGE}" in dockerfile
    assert compose["services"]["postgres"]["image"].startswith("${POSTGRES_IMAGE:-")
