"""The demo with its outputs in a bucket, beside the demo with a local root: wall time of the
builds, and of reading.

    python -m benchmarks.s3 [--folder demo-s3] [--megabytes 24] [--rounds 2]

A moto server on this machine (of the extra `dev`) plays the bucket, in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Command, options, run
from nanoset_core import load_nanoset
from nanoset_core.demo.writing import write_demo
from nanoset_core.errors import NanosetError
from nanoset_core.project.settings import load_config
from nanoset_core.storage.location import StorageSpec
from nanoset_core.storage.s3 import S3Store

BUCKET = "demo"
MADE = r"Made ([1-9]\d*) of \1 outputs"
KEYS = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def moto_server() -> Iterator[str]:
    """A server in a process of its own; → its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(150):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if server.poll() is not None:
                raise NanosetError("no moto server", remedy="pip install 'nanoset-platform[dev]'")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def build(config: Path, prints: str = MADE) -> float:
    """Build a project in a process of its own; → seconds. Raises RuntimeError where it prints
    something else.
    """
    command = [sys.executable, "-m", "nanoset_core.cli", "build", "--config", str(config)]
    _, wall, _ = run(Command(command, prints=prints))
    return wall


def with_root(demo: Path, folder: Path, root: str, endpoint: str | None) -> Path:
    """A copy of the demo with another root, nothing built; → its nanoset.yaml."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = (
        (demo / "nanoset.yaml")
        .read_text(encoding="utf-8")
        .replace("root: data", f"root: {root}")
        .replace("raw: raw", f"raw: {demo}/raw")
    )
    text = text.replace("  path: tokenizer.json", f"  path: {demo}/tokenizer.json")
    if endpoint is not None:
        text += f"storage: {{endpoint_url: {endpoint!r}}}\n"
    (folder / "nanoset.yaml").write_text(text, encoding="utf-8")
    return folder / "nanoset.yaml"


def speed(read: Callable[[Any], object], parts: Sequence[Any], samples: int) -> float:
    """Read parts one after another; → samples a second."""
    started = time.perf_counter()
    for part in parts:
        read(part)
    return samples / (time.perf_counter() - started)


def main() -> None:
    arguments = options(__doc__, folder=Path("demo-s3"), megabytes=24.0, rounds=1)
    os.environ.update({name: os.environ.get(name, value) for name, value in KEYS.items()})
    folder = arguments.folder.resolve()
    demo = folder / "demo"
    write_demo(demo, megabytes=arguments.megabytes, say=print)
    with moto_server() as endpoint:
        place = S3Store(BUCKET, "", endpoint)
        place.client().create_bucket(Bucket=BUCKET)
        times: dict[str, list[float]] = {"local": [], "s3": []}
        for number in range(arguments.rounds):
            times["local"].append(build(with_root(demo, folder / "local", "data", None)))
            times["s3"].append(
                build(with_root(demo, folder / "s3", f"s3://{BUCKET}/round-{number}", endpoint))
            )
        again = build(folder / "s3" / "nanoset.yaml", "nothing was made")
        print(
            f"build: local {min(times['local']):.1f} s, s3 {min(times['s3']):.1f} s: "
            f"{min(times['s3']) / min(times['local']):.2f}x; nothing to do on s3: {again:.1f} s"
        )
        compare_reading(folder, place)


def compare_reading(folder: Path, place: S3Store) -> None:
    """Samples per second from the local root, and from the bucket before and after their blocks are
    here.
    """
    local = load_nanoset(
        load_config(folder / "local" / "nanoset.yaml").root_folder, "pretrain", "train"
    )
    with tempfile.TemporaryDirectory(dir=folder) as mirror:
        storage = StorageSpec(endpoint_url=place.endpoint_url, mirror=mirror)
        remote = load_nanoset(f"s3://{BUCKET}/round-0", "pretrain", "train", storage)
        samples = np.random.default_rng(0).permutation(len(local))[:4000]
        started = time.perf_counter()
        same = np.array_equal(remote.batch(samples), local.batch(samples))
        print(
            f"reading {len(samples):,} samples for the first time: "
            f"{time.perf_counter() - started:.2f} s; same: {same}"
        )
        batches = np.array_split(samples, len(samples) // 64)
        for name, method, parts in (
            ("one by one", "tokens", samples.tolist()),
            ("batches of 64", "batch", batches),
        ):
            rates = [
                [speed(getattr(at, method), parts, len(samples)) for at in (local, remote)]
                for _ in range(3)
            ]
            here, there = (max(column) for column in zip(*rates, strict=True))
            print(
                f"{name}: local {here:,.0f} samples/s, s3 once cached {there:,.0f}: "
                f"{there / here:.2f}x"
            )


if __name__ == "__main__":
    main()
