"""Build the demo on this machine, and over a bucket and a cluster; both must make the same bytes.

    PYTHONPATH=tests python -m live.cluster_demo [FOLDER] [--megabytes 24]

Bucket and cluster run on this machine, too. The bucket is a Ceph gateway if one is installed
(apt-get install radosgw ceph-mon ceph-osd), otherwise moto's. Workers are tasks of
deploy/slurm/coordinator.sbatch if Slurm is installed (slurmctld slurmd slurm-client munge),
otherwise those of a plain Dask cluster.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from helpers import ceph_server, dask_cluster, s3_server, slurm_cluster
from nanoset_core.demo.writing import write_demo
from nanoset_core.storage.stores.s3.store import S3Store

ROOT = Path(__file__).parents[2]
BUCKET = "demo"
TRAINER_SUFFIXES = (".bin", ".idx", ".tar", ".pbin", ".npy")
"""Endings of the files that trainers read. Others contain the place of the project."""
SHOWN_DIFFERENCES = 10


def main() -> None:
    """Build both and compare them; exit with 1 if they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo-cluster"))
    parser.add_argument("--megabytes", type=float, default=24.0)
    options = parser.parse_args()
    demo = options.folder.resolve()
    prepare_environment()
    write_demo(demo, megabytes=options.megabytes, say=print)

    # On this machine.
    local_seconds = run_timed("on this machine", demo, ["nanoset", "build"])
    local_digests = digests_in_folder(demo / "data")

    # Over a bucket and a cluster.
    with (
        tempfile.TemporaryDirectory(prefix="cluster-demo-") as folder,
        run_s3_server(Path(folder)) as endpoint,
    ):
        scratch = Path(folder)
        bucket = S3Store(BUCKET, "", endpoint)
        bucket.client().create_bucket(Bucket=BUCKET)
        upload(demo / "raw", bucket)
        project = write_bucket_project(demo, scratch / "project", endpoint)
        with run_cluster(scratch, project) as command:
            title = f"with bucket and cluster ({command[0]})"
            cluster_seconds = run_timed(title, project, command)
        remote_digests = digests_in_store(S3Store(BUCKET, "data", endpoint))

    # Compare.
    print(
        f"{local_digests.total()} files for trainers; "
        f"{cluster_seconds:.1f} s instead of {local_seconds:.1f} s"
    )
    if local_digests != remote_digests:
        differences = (local_digests - remote_digests) + (remote_digests - local_digests)
        sys.exit(f"they differ: {sorted(differences.elements())[:SHOWN_DIFFERENCES]}")
    print("the same bytes")


def prepare_environment() -> None:
    """Let processes find this checkout, this Python and the server of this demo."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            del os.environ[name]  # of another server
    os.environ.update(s3_server.CREDENTIALS)
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"]
    os.environ["PATH"] = os.pathsep.join(folders)
    os.environ["PYTHONPATH"] = str(ROOT)


def are_installed(tools: tuple[str, ...]) -> bool:
    """Return whether programs are installed."""
    return all(shutil.which(tool) is not None for tool in tools)


def run_s3_server(scratch: Path) -> AbstractContextManager[str]:
    """Return a context that runs a server with buckets, and yields its address."""
    if are_installed(ceph_server.TOOLS):
        print("bucket: a Ceph gateway")
        return ceph_server.ceph_server(scratch / "ceph")
    print("bucket: moto")
    return s3_server.s3_server()


def run_cluster(scratch: Path, project: Path) -> AbstractContextManager[list[str]]:
    """Return a context that runs workers, and yields the command that builds on them.

    Args:
        scratch: A folder for the files of the cluster.
        project: The folder of the project, in which the command is to be run.
    """
    if are_installed(slurm_cluster.TOOLS):
        return run_slurm(scratch, project)
    return run_dask(scratch)


@contextmanager
def run_slurm(scratch: Path, project: Path) -> Iterator[list[str]]:
    """Run Slurm until the block ends; yield the command that builds in one of its jobs."""
    print("cluster: Slurm with two nodes, a job of three tasks")
    folder = scratch / "slurm"
    folder.mkdir(mode=0o755)
    with slurm_cluster.slurm(folder, nodes=2) as slurm:
        os.environ["SLURM_CONF"] = slurm.environment["SLURM_CONF"]
        os.environ["NANOSET_HOST"] = "127.0.0.1"
        script = str(ROOT / "deploy" / "slurm" / "coordinator.sbatch")
        options = ["--wait", "--ntasks=3", "--mem-per-cpu=1G", "--output=slurm.log"]
        yield ["sbatch", *options, script]
        print((project / "slurm.log").read_text(), file=sys.stderr)


@contextmanager
def run_dask(scratch: Path) -> Iterator[list[str]]:
    """Run a Dask cluster until the block ends; yield the command that builds on it."""
    print("cluster: a Dask scheduler and two workers")
    folder = scratch / "dask"
    folder.mkdir()
    with dask_cluster.running(folder) as dask:
        dask.staff(2)
        os.environ["NANOSET_DASK_ADDRESS"] = dask.address
        yield ["nanoset", "build"]


def write_bucket_project(demo: Path, folder: Path, endpoint: str) -> Path:
    """Write a project like the demo, with its text and outputs in the bucket; return its folder."""
    folder.mkdir()
    settings = (demo / "nanoset.yaml").read_text(encoding="utf-8")
    settings = settings.replace("raw: raw", f"raw: s3://{BUCKET}/raw")
    settings = settings.replace("root: data", f"root: s3://{BUCKET}/data")
    settings += f"storage: {{endpoint_url: {endpoint!r}}}\n"
    (folder / "nanoset.yaml").write_text(settings, encoding="utf-8")
    shutil.copy(demo / "tokenizer.json", folder)
    return folder


def upload(raw_folder: Path, bucket: S3Store) -> None:
    """Copy raw text into the bucket."""
    for path in sorted(raw_folder.rglob("*")):
        if path.is_file():
            key = f"raw/{path.relative_to(raw_folder).as_posix()}"
            bucket.client().put_object(Bucket=bucket.bucket, Key=key, Body=path.read_bytes())


Digests = Counter[tuple[str, str]]
"""How many files have a name and a SHA-256."""


def digests_in_folder(folder: Path) -> Digests:
    """Return the digests of the files below a folder that trainers read."""
    digests: Digests = Counter()
    for path in folder.rglob("*"):
        if path.is_file() and path.name.endswith(TRAINER_SUFFIXES):
            digests[digest_key(path.name, path.read_bytes())] += 1
    return digests


def digests_in_store(store: S3Store) -> Digests:
    """Return the digests of the objects in a store that trainers read."""
    digests: Digests = Counter()
    for file in store.list():
        if file.name.endswith(TRAINER_SUFFIXES):
            name = file.name.rpartition("/")[2]
            digests[digest_key(name, store.read(file.name))] += 1
    return digests


def digest_key(name: str, data: bytes) -> tuple[str, str]:
    """Return name and SHA-256 of a file, by which the same file of both projects is recognised."""
    # Names of index caches start with a hash of the place of the dataset.
    stable_name = re.sub(r"^[0-9a-f]{32}-", "", name)
    return stable_name, hashlib.sha256(data).hexdigest()


def run_timed(title: str, folder: Path, command: list[str]) -> float:
    """Run a command in a folder, and return how many seconds it took."""
    print(f"build {title}: {' '.join(command)}")
    started_at = time.monotonic()
    subprocess.run(command, cwd=folder, check=True)
    return time.monotonic() - started_at


if __name__ == "__main__":
    main()
