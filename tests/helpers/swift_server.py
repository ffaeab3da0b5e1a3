"""An OpenStack Swift of one's own on loopback, with its S3 API: four processes and a private
folder.

In an environment of its own: pip install swift 'setuptools<81'; then let SWIFT_BIN name its bin
folder.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.daemons import free_ports, run, running, wait_for

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "an-example-secret"}
"""An account and its user, which is how Swift's S3 API names who asks."""
_RING = "swift-ring-builder"
_KINDS = ("account", "container", "object")
_HASH = """[swift-hash]
swift_hash_path_suffix = an-example-suffix
[storage-policy:0]
name = one
default = yes
"""
_COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
log_level = WARNING
log_address = {folder}/no-log
user = {user}
"""
_STORAGE = """[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
replication_server = true
"""
_FILTERS = {
    "catch_errors": "",
    "gatekeeper": "",
    "healthcheck": "",
    "cache": "memcache_servers = 127.0.0.1:1",
    "listing_formats": "",
    "bulk": "",
    "s3api": """location = us-east-1
dns_compliant_bucket_names = true
min_segment_size = 5242880
max_upload_part_num = 10000
allow_multipart_uploads = true
check_bucket_owner = false""",
    "tempauth": f"user_test_tester = {CREDENTIALS['AWS_SECRET_ACCESS_KEY']} .admin",
    "slo": "max_manifest_segments = 10000\nmin_segment_size = 1",
    "dlo": "",
    "versioned_writes": "allow_object_versioning = true",
    "copy": "",
    "symlink": "",
    "proxy-logging": "",
}
_PACKAGED_AS = {"cache": "memcache", "proxy-logging": "proxy_logging"}


@contextlib.contextmanager
def swift_server(folder: Path) -> Iterator[str]:
    """A Swift that keeps objects in a folder, whose file system must have extended attributes; →
    its address.
    """
    path = os.pathsep.join([os.environ.get("SWIFT_BIN", ""), os.environ["PATH"]])
    tools = [_RING, *(f"swift-{kind}-server" for kind in ("proxy", *_KINDS))]
    found = {tool: shutil.which(tool, path=path) for tool in tools}
    if missing := [tool for tool, place in found.items() if place is None]:
        pytest.skip(
            f"{', '.join(missing)} not found: pip install swift in an environment, and name its "
            "bin by SWIFT_BIN"
        )
    (folder / "devices" / "disk").mkdir(parents=True)
    (folder / "swift.conf").write_text(_HASH)
    ports = dict(zip(("proxy", *_KINDS), free_ports(4), strict=True))
    for kind, port in ports.items():
        text = _COMMON.format(port=port, folder=folder, user=getpass.getuser())
        (folder / f"{kind}.conf").write_text(
            text + (_proxy() if kind == "proxy" else _STORAGE.format(kind=kind))
        )
    with contextlib.ExitStack() as daemons:
        for kind in _KINDS:
            builder = str(folder / f"{kind}.builder")
            run(str(found[_RING]), builder, "create", "4", "1", "0")
            run(str(found[_RING]), builder, "add", f"r1z1-127.0.0.1:{ports[kind]}/disk", "1")
            run(str(found[_RING]), builder, "rebalance")
        for kind in (*_KINDS, "proxy"):
            command = [str(found[f"swift-{kind}-server"]), str(folder / f"{kind}.conf")]
            daemons.enter_context(running(command, folder / f"{kind}.out", folder=folder))
        address = f"http://127.0.0.1:{ports['proxy']}"
        wait_for(f"{address}/healthcheck")
        yield address


def _proxy() -> str:
    sections = [f"[pipeline:main]\npipeline = {' '.join(_FILTERS)} proxy-server"]
    sections.append(
        "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = "
        "true\nallow_account_management = true"
    )
    for name, settings in _FILTERS.items():
        sections.append(
            f"[filter:{name}]\nuse = egg:swift#{_PACKAGED_AS.get(name, name)}\n{settings}"
        )
    return "\n".join(sections) + "\n"
