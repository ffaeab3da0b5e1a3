"""A Ceph RADOS gateway of one's own on loopback: a real S3 server for tests, in three processes and
a private folder.

On Debian and Ubuntu: apt-get install --no-install-recommends radosgw ceph-mon ceph-osd
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
    """A gateway that keeps objects in memory, and knows the credentials of `s3_server`; → its
    address.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(
            f"{', '.join(missing)} not installed: apt-get install radosgw ceph-mon ceph-osd"
        )
    for name in ("mon", "osd", "rgw", "crash"):
        (folder / name).mkdir(parents=True)
    fsid, (monitor, gateway) = str(uuid.uuid4()), free_ports(2)
    conf = folder / "ceph.conf"
    conf.write_text(
        _CONFIGURATION.format(fsid=fsid, folder=folder, monitor=monitor, gateway=gateway)
    )
    address = f"http://127.0.0.1:{gateway}"
    with contextlib.ExitStack() as daemons:

        def start(*command: str) -> None:
            daemons.enter_context(running(command, folder / f"{command[0]}.out", folder=folder))

        monmap, place = folder / "monmap", f"[v2:127.0.0.1:{monitor}/0]"
        run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", place, str(monmap))
        run("ceph-mon", "-c", str(conf), "-i", "a", "--mkfs", "--monmap", str(monmap))
        start("ceph-mon", "-c", str(conf), "-i", "a", "-f")
        osd = str(uuid.uuid4())
        run("ceph", "-c", str(conf), "--connect-timeout", "30", "osd", "new", osd)
        run("ceph-osd", "-c", str(conf), "-i", "0", "--mkfs", "--osd-uuid", osd)
        start("ceph-osd", "-c", str(conf), "-i", "0", "-f")
        keys = [
            CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "--secret-key",
            CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        ]
        user = [
            "user",
            "create",
            "--uid",
            "test",
            "--display-name",
            "test",
            "--max-buckets",
            "0",
            "--access-key",
        ]
        run("radosgw-admin", "-c", str(conf), "-n", "client.rgw", *user, *keys)
        start("radosgw", "-c", str(conf), "-n", "client.rgw", "-f")
        wait_for(address)
        yield address
