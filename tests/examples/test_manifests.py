"""The manifests and batch scripts among the examples: valid, and their ``ftlib run`` says what they mean."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubeflow_trainer_api.models as kubeflow
import kubernetes_validate
import pytest
import yaml

from ftlib.launch.command import run
from tests.harness.program import ROOT

FOLDER = ROOT / "examples" / "kubernetes"
VERSIONS = ("1.33", "1.37")
"""Of Kubernetes, which the schemas are of."""
THEIRS = {
    "JobSet": kubeflow.JobsetV1alpha2JobSet,
    "TrainJob": kubeflow.TrainerV1alpha1TrainJob,
    "TrainingRuntime": kubeflow.TrainerV1alpha1TrainingRuntime,
}


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, part) for path in sorted(FOLDER.glob("*.yaml")) for part in yaml.safe_load_all(path.read_text())]


DOCUMENTS = documents()
IDS = [f"{name}-{part['kind']}" for name, part in DOCUMENTS]


@pytest.mark.parametrize(("name", "part"), DOCUMENTS, ids=IDS)
def test_a_manifest_is_valid(name: str, part: dict[str, Any]) -> None:
    if part["kind"] in THEIRS:
        model = THEIRS[part["kind"]].from_dict(part)
        assert model.to_dict() == part, "a key that nobody knows is left out"
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}}
        spec = part["spec"]["template"]["spec"] if part["kind"] == "TrainingRuntime" else part["spec"]
        inner = [{**job, "spec": each["template"]["spec"]} for each in spec.get("replicatedJobs", ())]
    else:
        inner = [part]
    for each in inner:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


def containers(value: object) -> Iterator[dict[str, Any]]:
    """Whatever has a command."""
    if isinstance(value, dict):
        if "command" in value:
            yield value
        for each in value.values():
            yield from containers(each)
    elif isinstance(value, list):
        for each in value:
            yield from containers(each)


def understood(arguments: list[str]) -> dict[str, Any]:
    """The options of that ``ftlib run``."""
    return click.Context(run).command.make_context("run", arguments).params


@pytest.mark.parametrize(("name", "part"), DOCUMENTS, ids=IDS)
def test_its_command_fits_the_rest(name: str, part: dict[str, Any]) -> None:
    if name == "around.yaml" or part["kind"] in ("TrainingRuntime", "PodDisruptionBudget"):
        return  # nothing runs there: see below
    spec = part["spec"]
    if part["kind"] == "Service":
        assert spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"]
        assert {port.get("protocol", "TCP") for port in spec["ports"]} == {"TCP", "UDP"}
        return
    [container] = containers(part)
    assert container["command"][:2] == ["ftlib", "run"], "its first process gets SIGTERM"
    options = understood(container["command"][2:])
    pods = spec.get("replicas") or spec.get("completions") or spec.get("trainer", {}).get("numNodes")
    if part["kind"] == "JobSet":
        pods = spec["replicatedJobs"][0]["template"]["spec"]["completions"]
        assert options["meet"] == f"{spec['network']['subdomain']}:7000"
    assert options["meet"] == "auto" or options["size"] == options["workers"] * pods
    whole = [each for file, each in DOCUMENTS if file == name] if part["kind"] == "TrainJob" else part
    [patience] = found(whole, "terminationGracePeriodSeconds")
    assert options["grace"] < patience, "the workers have drained before Kubernetes kills them"
    assert "FTLIB_SECRET" in [each["name"] for each in container["env"]]


def test_the_job_uses_the_runtime_beside_it() -> None:
    runtime, job, _ = (part for name, part in DOCUMENTS if name == "trainjob.yaml")
    assert job["spec"]["runtimeRef"] == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    assert found(runtime, "publishNotReadyAddresses") == [True]
    [replicated] = found(runtime, "replicatedJobs")
    [container] = found(replicated, "containers")[0]
    # Under these two names the trainer looks for the job and the container that it starts the program in.
    assert (replicated[0]["name"], container["name"]) == ("node", "node")
    assert found(replicated, "labels") == [{"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}]


def found(value: object, key: str) -> list[Any]:
    """All values under that key."""
    if isinstance(value, list):
        return [each for item in value for each in found(item, key)]
    if isinstance(value, dict):
        return [each for name, item in value.items() for each in ([item] if name == key else found(item, key))]
    return []


def test_the_batch_script() -> None:
    path = ROOT / "examples" / "slurm" / "train.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    [line] = [line for line in path.read_text().splitlines() if line.startswith("srun ")]
    words = shlex.split(line)
    options = understood(words[words.index("ftlib") + 2 :])
    assert (options["workers"], options["meet"]) == ("gpu", "auto")


def test_the_folder_is_whole() -> None:
    jobs, around = ({part["kind"] for name, part in DOCUMENTS if (name == "around.yaml") is so} for so in (False, True))
    assert jobs == {"Service", "StatefulSet", "Job", "JobSet", "TrainJob", "TrainingRuntime", "PodDisruptionBudget"}
    assert around == {"NetworkPolicy", "ConfigMap"}
    assert all(isinstance(path, Path) for path in FOLDER.iterdir())


LABELS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",  # it makes a JobSet of its own name
}
"""By which label the pods of that kind have its name. They are pods of a Job, which has no scale subresource."""


@pytest.mark.parametrize("name", sorted({name for name, _ in DOCUMENTS} - {"around.yaml"}))
def test_a_budget_allows_one_pod_at_a_time(name: str) -> None:
    """https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors"""
    parts = {part["kind"]: part for file, part in DOCUMENTS if file == name}
    budget = parts["PodDisruptionBudget"]["spec"]
    [job] = [part for kind, part in parts.items() if kind in (*LABELS, "StatefulSet")]
    if job["kind"] == "StatefulSet":
        assert budget["selector"] == {"matchLabels": job["spec"]["template"]["metadata"]["labels"]}
        assert budget["maxUnavailable"] == 1 and "minAvailable" not in budget
        return
    assert budget["selector"] == {"matchLabels": {LABELS[job["kind"]]: job["metadata"]["name"]}}
    [pods] = found(job, "completions") or found(job, "numNodes")
    assert "maxUnavailable" not in budget, "a Job does not say how many pods it wants"
    assert type(budget["minAvailable"]) is int, "nor has a percentage anything to be of"
    assert budget["minAvailable"] == pods - 1


def test_what_goes_with_them_is_of_the_same_pods() -> None:
    parts = {part["kind"]: part for name, part in DOCUMENTS if name in ("statefulset.yaml", "around.yaml")}
    labels = parts["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert parts["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    service, port = parts["Service"]["metadata"]["name"], parts["Service"]["spec"]["ports"][0]["port"]
    assert parts["Service"]["spec"]["selector"] == labels
    [scrape] = yaml.safe_load(parts["ConfigMap"]["data"]["prometheus.yml"])["scrape_configs"]
    name = parts["StatefulSet"]["metadata"]["name"]
    [sources] = [rule["from"] for rule in parts["NetworkPolicy"]["spec"]["ingress"] if "namespaceSelector" in rule["from"][0]]
    [prometheus] = sources[0]["namespaceSelector"]["matchLabels"].values()
    home = parts["StatefulSet"]["metadata"].get("namespace", "default")
    assert parts["ConfigMap"]["metadata"]["namespace"] == prometheus != home
    # A pod of another namespace resolves no name without the job's: its search list begins with its own.
    assert [each["url"] for each in scrape["http_sd_configs"]] == [
        f"http://{name}-{number}.{service}.{home}.svc:{port}/targets" for number in range(2)
    ]
