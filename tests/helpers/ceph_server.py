"""A gateway of Ceph on this machine, as a real S3 server for tests.

It consists of three processes, and of a folder that only they use. To install them on Debian and
Ubuntu: apt-get install --no-install-recommends radosgw ceph-mon ceph-osd
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.daemons import free_ports, run, running, wait_for
from helpers.s3_server import CREDENTIALS

TOOLS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
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
# The default is "secure", which needs cephx: without it, the gateway waits for the monitor forever.
ms_mon_client_mode = crc
rgw_data = {folder}/rgw
# Without tcp_nodelay, each answer with a body waits 40 ms for an acknowledgement that the client delays.
rgw_frontends = beast endpoint=127.0.0.1:{gateway} tcp_nodelay=1
rgw_thread_pool_size = 32
rgw_override_bucket_index_max_shards = 1
"""


def skip_without_tools() -> None:
    """Skip the test if a program of Ceph is not installed."""
    missing_tools = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing_tools:
        names = ", ".join(missing_tools)
        pytest.skip(f"{names} not installed: apt-get install radosgw ceph-mon ceph-osd")


@contextlib.contextmanager
def ceph_server(folder: Path) -> Iterator[str]:
    """Start a gateway that stores objects in memory, and yield its address.

    It accepts the credentials of `s3_server`.

    Args:
        folder: The folder of its files, which need not exist.
    """
    skip_without_tools()
    for name in ("mon", "osd", "rgw", "crash"):
        (folder / name).mkdir(parents=True)
    cluster_id = str(uuid.uuid4())
    monitor_port, gateway_port = free_ports(2)
    configuration = folder / "ceph.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            fsid=cluster_id, folder=folder, monitor=monitor_port, gateway=gateway_port
        )
    )
    in_cluster = ("-c", str(configuration))

    with contextlib.ExitStack() as daemons:

        def start(program: str, *arguments: str) -> None:
            """Start a daemon in the foreground, which ends with the context."""
            command = (program, *in_cluster, *arguments, "-f")
            daemons.enter_context(running(command, folder / f"{program}.out", folder=folder))

        # The monitor, which knows the members of the cluster.
        monitor_map = str(folder / "monmap")
        monitor_address = f"[v2:127.0.0.1:{monitor_port}/0]"
        run(
            "monmaptool", "--create", "--fsid", cluster_id, "--addv", "a", monitor_address,
            monitor_map,
        )  # fmt: skip
        run("ceph-mon", *in_cluster, "-i", "a", "--mkfs", "--monmap", monitor_map)
        start("ceph-mon", "-i", "a")

        # The storage daemon, which has to be registered with the monitor.
        storage_id = str(uuid.uuid4())
        run("ceph", *in_cluster, "--connect-timeout", "30", "osd", "new", storage_id)
        run("ceph-osd", *in_cluster, "-i", "0", "--mkfs", "--osd-uuid", storage_id)
        start("ceph-osd", "-i", "0")

        # The gateway, with a user who may have any number of buckets.
        run(
            "radosgw-admin", *in_cluster, "-n", "client.rgw",
            "user", "create", "--uid", "test", "--display-name", "test", "--max-buckets", "0",
            "--access-key", CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "--secret-key", CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )  # fmt: skip
        start("radosgw", "-n", "client.rgw")
        address = f"http://127.0.0.1:{gateway_port}"
        wait_for(address)
        yield address
