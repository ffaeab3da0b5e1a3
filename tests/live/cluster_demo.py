"""The demo over a bucket and a cluster, both played by this machine, beside the demo of one
machine: the same bytes.

    PYTHONPATH=tests python -m live.cluster_demo [FOLDER] [--megabytes 24]

The bucket is a Ceph gateway where one is installed (apt-get install radosgw ceph-mon ceph-osd),
else moto's. Workers are tasks of deploy/slurm/coordinator.sbatch where Slurm is (slurmctld slurmd
slurm-client munge), else those of a plain Dask cluster.
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
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from helpers import ceph_server, dask_cluster, s3_server, slurm_cluster
from nanoset_core.demo.writing import write_demo
from nanoset_core.storage.s3 import S3Store

ROOT = Path(__file__).parents[2]
BUCKET = "demo"
COMPARED = (".bin", ".idx", ".tar", ".pbin", ".npy")
"""Endings of what trainers read; text beside it names where the project lies."""


def main() -> None:
    """Build both, and compare them; exit code 1 where they differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo-cluster"))
    parser.add_argument("--megabytes", type=float, default=24.0)
    options = parser.parse_args()
    demo = options.folder.resolve()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]  # of another server
    os.environ.update(s3_server.CREDENTIALS)
    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"]
    )
    os.environ["PYTHONPATH"] = str(ROOT)
    write_demo(demo, megabytes=options.megabytes, say=print)
    here = timed("on this machine", demo, ["nanoset", "build"])
    local = digests(
        (path.name, path.read_bytes()) for path in (demo / "data").rglob("*") if path.is_file()
    )
    with (
        tempfile.TemporaryDirectory(prefix="cluster-demo-") as scratch,
        s3(Path(scratch)) as endpoint,
    ):
        place = S3Store(BUCKET, "", endpoint)
        place.client().create_bucket(Bucket=BUCKET)
        upload(demo / "raw", place)
        project = in_bucket(demo, Path(scratch) / "project", endpoint)
        with cluster(Path(scratch), project) as build:
            there = timed(f"with bucket and cluster ({build[0]})", project, build)
        store = S3Store(BUCKET, "data", endpoint)
        names = [found.name for found in store.list()]
        remote = digests(
            (name.rpartition("/")[2], store.read(name)) for name in names if name.endswith(COMPARED)
        )
    print(f"{local.total()} files for trainers; {there:.1f} s instead of {here:.1f} s")
    if local != remote:
        sys.exit(f"they differ: {sorted(((local - remote) + (remote - local)).elements())[:10]}")
    print("the same bytes")


def s3(scratch: Path) -> AbstractContextManager[str]:
    """A server; → its address."""
    is_ceph = all(shutil.which(tool) for tool in ceph_server.TOOLS)
    print(f"bucket: {'a Ceph gateway' if is_ceph else 'moto'}")
    return ceph_server.ceph_server(scratch / "ceph") if is_ceph else s3_server.s3_server()


@contextmanager
def cluster(scratch: Path, project: Path) -> Iterator[list[str]]:
    """Workers; → the command that builds on them, from the project's folder."""
    if all(shutil.which(tool) for tool in slurm_cluster.TOOLS):
        print("cluster: Slurm with two nodes, a job of three tasks")
        (scratch / "slurm").mkdir(mode=0o755)
        with slurm_cluster.slurm(scratch / "slurm", nodes=2) as slurm:
            os.environ |= {
                "SLURM_CONF": slurm.environment["SLURM_CONF"],
                "NANOSET_HOST": "127.0.0.1",
            }
            script = str(ROOT / "deploy" / "slurm" / "coordinator.sbatch")
            yield [
                "sbatch",
                "--wait",
                "--ntasks=3",
                "--mem-per-cpu=1G",
                "--output=slurm.log",
                script,
            ]
            print((project / "slurm.log").read_text(), file=sys.stderr)
        return
    print("cluster: a Dask scheduler and two workers")
    (scratch / "dask").mkdir()
    with dask_cluster.running(scratch / "dask") as dask:
        dask.staff(2)
        os.environ["NANOSET_DASK_ADDRESS"] = dask.address
        yield ["nanoset", "build"]


def in_bucket(demo: Path, folder: Path, endpoint: str) -> Path:
    """A project whose text and outputs are in the bucket; → its folder."""
    folder.mkdir()
    text = (demo / "nanoset.yaml").read_text(encoding="utf-8")
    text = text.replace("raw: raw", f"raw: s3://{BUCKET}/raw").replace(
        "root: data", f"root: s3://{BUCKET}/data"
    )
    (folder / "nanoset.yaml").write_text(
        f"{text}storage: {{endpoint_url: {endpoint!r}}}\n", encoding="utf-8"
    )
    shutil.copy(demo / "tokenizer.json", folder)
    return folder


def upload(folder: Path, place: S3Store) -> None:
    """Raw text into the bucket."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place.client().upload_file(
            str(path), place.bucket, f"raw/{path.relative_to(folder).as_posix()}"
        )


def digests(files: Iterable[tuple[str, bytes]]) -> Counter[tuple[str, str]]:
    """(name, sha256) of what trainers read; names of index caches begin with a hash of where the
    dataset lies.
    """
    read = (
        (re.sub(r"^[0-9a-f]{32}-", "", name), data)
        for name, data in files
        if name.endswith(COMPARED)
    )
    return Counter((name, hashlib.sha256(data).hexdigest()) for name, data in read)


def timed(what: str, folder: Path, command: list[str]) -> float:
    """Run a command in a folder; → seconds."""
    print(f"build {what}: {' '.join(command)}")
    started = time.monotonic()
    subprocess.run(command, cwd=folder, check=True)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
