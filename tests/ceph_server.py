"""A Ceph RADOS gateway of one's own on loopback: a real S3 server for tests, in three processes and a private folder.

On Debian and Ubuntu: apt-get install --no-install-recommends radosgw ceph-mon ceph-osd
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import CREDENTIALS

TOOLS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
START_SECONDS = 90
STOP_SECONDS = 10
_CONFIGURATION = """[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{monitor}/0]
mon_initial_members = a
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
run_dir = {folder}
admin_socket = {folder}/$name.asok
log_file = {folder}/$name.log
crash_dir = {folder}/crash
pid_file =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000

[mon]
mon_data = {folder}/mon
mon_data_avail_crit = 1
mon_data_avail_warn = 2
paxos_propose_interval = 0.05

[osd]
osd_data = {folder}/osd
osd_objectstore = memstore
memstore_device_bytes = 2147483648
memstore_page_set = false

[client.rgw]
# It asks for "secure" by itself, which there is not without cephx: it would wait for the monitor without end.
ms_mon_client_mode = crc
rgw_data = {folder}/rgw
# Without tcp_nodelay each answer with a body waits 40 ms for an acknowledgement that the client delays.
rgw_frontends = beast endpoint=127.0.0.1:{gateway} tcp_nodelay=1
rgw_thread_pool_size = 32
rgw_override_bucket_index_max_shards = 1
"""


@contextlib.contextmanager
def ceph_server(folder: Path) -> Iterator[str]:
    """A gateway that keeps objects in memory, and knows the credentials of `s3_server`; → its address."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install radosgw ceph-mon ceph-osd")
    for name in ("mon", "osd", "rgw", "crash"):
        (folder / name).mkdir(parents=True)
    fsid, (monitor, gateway) = str(uuid.uuid4()), _free_ports(2)
    conf = folder / "ceph.conf"
    conf.write_text(_CONFIGURATION.format(fsid=fsid, folder=folder, monitor=monitor, gateway=gateway))
    address = f"http://127.0.0.1:{gateway}"
    with contextlib.ExitStack() as daemons:

        def start(*command: str) -> None:
            daemons.enter_context(_daemon(folder, *command))

        monmap, place = folder / "monmap", f"[v2:127.0.0.1:{monitor}/0]"
        _run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", place, str(monmap))
        _run("ceph-mon", "-c", str(conf), "-i", "a", "--mkfs", "--monmap", str(monmap))
        start("ceph-mon", "-c", str(conf), "-i", "a", "-f")
        osd = str(uuid.uuid4())
        _run("ceph", "-c", str(conf), "--connect-timeout", "30", "osd", "new", osd)
        _run("ceph-osd", "-c", str(conf), "-i", "0", "--mkfs", "--osd-uuid", osd)
        start("ceph-osd", "-c", str(conf), "-i", "0", "-f")
        keys = [CREDENTIALS["AWS_ACCESS_KEY_ID"], "--secret-key", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
        user = ["user", "create", "--uid", "test", "--display-name", "test", "--max-buckets", "0", "--access-key"]
        _run("radosgw-admin", "-c", str(conf), "-n", "client.rgw", *user, *keys)
        start("radosgw", "-c", str(conf), "-n", "client.rgw", "-f")
        _wait_for(address)
        yield address


@contextlib.contextmanager
def _daemon(folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{command[0]}.out").open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}"


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            assert time.monotonic() < deadline, "the gateway does not answer"
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, below those that the system gives to outgoing connections."""
    ports: list[int] = []
    chosen = random.Random(os.getpid() ^ time.time_ns())
    while len(ports) < count:
        port = chosen.randrange(10_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports
