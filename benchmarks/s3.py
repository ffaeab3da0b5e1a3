"""Compare the demo with its outputs in a bucket, and with its outputs in a local folder.

    python -m benchmarks.s3 [--folder demo-s3] [--megabytes 24] [--rounds 2]

Prints the wall time of building the demo, and how fast samples are read. The bucket is on a moto
server on this machine, in a separate process (of the extra `dev`).
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
from nanoset_core.storage.settings import StorageSpec
from nanoset_core.storage.stores.s3.store import S3Store

BUCKET = "demo"
MADE_ALL = r"Made ([1-9]\d*) of \1 outputs"
"""What `nanoset build` prints if it made all outputs."""
MADE_NOTHING = "nothing was made"
"""What it prints if all outputs were up to date."""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment variables with which clients use the server."""
START_ATTEMPTS = 150
"""How many times a starting server is looked for, with pauses of 0.2 seconds."""
N_SAMPLES = 4000
"""Samples that are read."""
BATCH = 64
"""Samples of a batch."""
READING_ROUNDS = 3


def main() -> None:
    """Build the demo in both places, and read from both."""
    arguments = options(__doc__, folder=Path("demo-s3"), megabytes=24.0, rounds=1)
    set_credentials()
    folder = arguments.folder.resolve()
    demo = folder / "demo"
    write_demo(demo, megabytes=arguments.megabytes, say=print)
    with moto_server() as endpoint:
        place = S3Store(BUCKET, "", endpoint)
        place.client().create_bucket(Bucket=BUCKET)
        compare_builds(demo, folder, endpoint, arguments.rounds)
        compare_reading(folder, place)


def set_credentials() -> None:
    """Set the environment variables of the server, unless they are set already."""
    for name, value in CREDENTIALS.items():
        os.environ.setdefault(name, value)


@contextmanager
def moto_server() -> Iterator[str]:
    """Run a server of buckets in a separate process; yield its address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(server, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a server accepts connections.

    Raises:
        NanosetError: The server ended. Then moto is probably not installed.
    """
    for _ in range(START_ATTEMPTS):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if server.poll() is not None:
            raise NanosetError("no moto server", remedy="pip install 'nanoset-platform[dev]'")
        time.sleep(0.2)


def compare_builds(demo: Path, folder: Path, endpoint: str, rounds: int) -> None:
    """Build the demo in both places in turn, and print the shortest times.

    Args:
        demo: The demo, without outputs.
        folder: Receives the projects `local` and `s3`.
        endpoint: Address of the server.
        rounds: Number of rounds.
    """
    local_times = []
    s3_times = []
    for number in range(rounds):
        local = copy_with_root(demo, folder / "local", "data", None)
        local_times.append(build(local))
        remote = copy_with_root(demo, folder / "s3", f"s3://{BUCKET}/round-{number}", endpoint)
        s3_times.append(build(remote))
    idle_time = build(folder / "s3" / "nanoset.yaml", MADE_NOTHING)

    ratio = min(s3_times) / min(local_times)
    print(
        f"build: local {min(local_times):.1f} s, s3 {min(s3_times):.1f} s: {ratio:.2f}x; "
        f"nothing to do on s3: {idle_time:.1f} s"
    )


def copy_with_root(demo: Path, folder: Path, root: str, endpoint: str | None) -> Path:
    """Write a project that builds the demo's outputs elsewhere; return its nanoset.yaml.

    Args:
        demo: The demo, whose text and tokenizer are used.
        folder: Receives the project, which has no outputs.
        root: Folder or address of the outputs.
        endpoint: Address of the server, if the outputs are in a bucket.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = (demo / "nanoset.yaml").read_text(encoding="utf-8")
    text = text.replace("root: data", f"root: {root}")
    text = text.replace("raw: raw", f"raw: {demo}/raw")
    text = text.replace("  path: tokenizer.json", f"  path: {demo}/tokenizer.json")
    if endpoint is not None:
        text += f"storage: {{endpoint_url: {endpoint!r}}}\n"
    config = folder / "nanoset.yaml"
    config.write_text(text, encoding="utf-8")
    return config


def build(config: Path, prints: str = MADE_ALL) -> float:
    """Build a project in a separate process; return the seconds that it took.

    Args:
        config: The nanoset.yaml of the project.
        prints: A regular expression that matches the output.

    Raises:
        RuntimeError: The build failed, or printed something else.
    """
    command = [sys.executable, "-m", "nanoset_core.cli", "build", "--config", str(config)]
    return run(Command(command, prints=prints)).wall


def compare_reading(folder: Path, place: S3Store) -> None:
    """Print how fast samples are read from the local root, and from the bucket.

    The bucket is read before and after the blocks that contain the samples have been downloaded.

    Args:
        folder: Contains the project `local`, which was built.
        place: The bucket.
    """
    local_root = load_config(folder / "local" / "nanoset.yaml").root_folder
    local = load_nanoset(local_root, "pretrain", "train")
    with tempfile.TemporaryDirectory(dir=folder) as mirror:
        storage = StorageSpec(endpoint_url=place.endpoint_url, mirror=mirror)
        remote = load_nanoset(f"s3://{BUCKET}/round-0", "pretrain", "train", storage)
        samples = np.random.default_rng(0).permutation(len(local))[:N_SAMPLES]

        started = time.perf_counter()
        are_equal = np.array_equal(remote.batch(samples), local.batch(samples))
        seconds = time.perf_counter() - started
        print(
            f"reading {len(samples):,} samples for the first time: {seconds:.2f} s; "
            f"same: {are_equal}"
        )

        batches = np.array_split(samples, len(samples) // BATCH)
        compare_rates("one by one", local.tokens, remote.tokens, samples.tolist())
        compare_rates(f"batches of {BATCH}", local.batch, remote.batch, batches)


def compare_rates(
    title: str,
    read_local: Callable[[Any], object],
    read_remote: Callable[[Any], object],
    requests: Sequence[Any],
) -> None:
    """Print the highest rates at which two readers read the same samples in turn.

    Args:
        title: Start of the line.
        read_local: Reads from the local root.
        read_remote: Reads from the bucket.
        requests: What they are called with: numbers of samples, or batches of them.
    """
    local_rates = []
    remote_rates = []
    for _ in range(READING_ROUNDS):
        local_rates.append(samples_per_second(read_local, requests))
        remote_rates.append(samples_per_second(read_remote, requests))

    local_rate = max(local_rates)
    remote_rate = max(remote_rates)
    print(
        f"{title}: local {local_rate:,.0f} samples/s, s3 once cached {remote_rate:,.0f}: "
        f"{remote_rate / local_rate:.2f}x"
    )


def samples_per_second(read: Callable[[Any], object], requests: Sequence[Any]) -> float:
    """Read samples, and return how many were read per second.

    Args:
        read: Reads one sample or one batch.
        requests: What it is called with: numbers of samples, or batches of them.
    """
    started = time.perf_counter()
    for request in requests:
        read(request)
    seconds = time.perf_counter() - started
    n_samples = sum(np.size(request) for request in requests)
    return n_samples / seconds


if __name__ == "__main__":
    main()
