"""OpenStack Swift with its S3 API on this machine, as a real S3 server for tests.

It consists of four processes, and of a folder that only they use. To install it, make a separate
environment, run `pip install swift 'setuptools<81'` in it, and let SWIFT_BIN name its bin folder.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from helpers.daemons import free_ports, run, running, wait_for

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "an-example-secret"}
"""An account with its user, by which Swift's S3 API identifies clients, and its password."""
_RING_BUILDER = "swift-ring-builder"
_STORAGE_KINDS = ("account", "container", "object")
"""What the three storage servers store."""
_ALL_KINDS = (*_STORAGE_KINDS, "proxy")
_CLUSTER = """[swift-hash]
swift_hash_path_suffix = an-example-suffix
[storage-policy:0]
name = one
default = yes
"""
_SERVER = """[DEFAULT]
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
_PROXY = """[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true"""
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
"""Filter of the proxy → its settings. Requests pass the filters in this order."""
_ENTRY_POINTS = {"cache": "memcache", "proxy-logging": "proxy_logging"}
"""Filters whose entry point in Swift's package has another name."""


@contextlib.contextmanager
def swift_server(folder: Path) -> Iterator[str]:
    """Start Swift, which stores objects in a folder, and yield the address of its S3 API.

    Args:
        folder: The folder of its files. Its file system must have extended attributes.
    """
    tools = _find_tools()
    ports = dict(zip(_ALL_KINDS, free_ports(len(_ALL_KINDS)), strict=True))
    _write_settings(folder, ports)
    for kind in _STORAGE_KINDS:
        # A ring says which disks store the data of a kind: here, a single one.
        ring = str(folder / f"{kind}.builder")
        disk = f"r1z1-127.0.0.1:{ports[kind]}/disk"
        run(tools[_RING_BUILDER], ring, "create", "4", "1", "0")
        run(tools[_RING_BUILDER], ring, "add", disk, "1")
        run(tools[_RING_BUILDER], ring, "rebalance")

    with contextlib.ExitStack() as daemons:
        for kind in _ALL_KINDS:
            command = [tools[f"swift-{kind}-server"], str(folder / f"{kind}.conf")]
            daemons.enter_context(running(command, folder / f"{kind}.out", folder=folder))
        address = f"http://127.0.0.1:{ports['proxy']}"
        wait_for(f"{address}/healthcheck")
        yield address


def _find_tools() -> dict[str, str]:
    """Return the path of each program of Swift, or skip the test if one is not installed."""
    search_path = os.pathsep.join([os.environ.get("SWIFT_BIN", ""), os.environ["PATH"]])
    paths: dict[str, str] = {}
    missing: list[str] = []
    for tool in (_RING_BUILDER, *(f"swift-{kind}-server" for kind in _ALL_KINDS)):
        path = shutil.which(tool, path=search_path)
        if path is None:
            missing.append(tool)
        else:
            paths[tool] = path
    if missing:
        names = ", ".join(missing)
        pytest.skip(f"{names} not found: install swift in an environment, and set SWIFT_BIN")
    return paths


def _write_settings(folder: Path, ports: Mapping[str, int]) -> None:
    """Write the settings of all servers, by the ports at which they listen."""
    (folder / "devices" / "disk").mkdir(parents=True)
    (folder / "swift.conf").write_text(_CLUSTER)
    for kind, port in ports.items():
        text = _SERVER.format(port=port, folder=folder, user=getpass.getuser())
        text += _proxy_settings() if kind == "proxy" else _STORAGE.format(kind=kind)
        (folder / f"{kind}.conf").write_text(text)


def _proxy_settings() -> str:
    """Return the settings of the proxy and of all its filters."""
    pipeline = " ".join([*_FILTERS, "proxy-server"])
    sections = [f"[pipeline:main]\npipeline = {pipeline}", _PROXY]
    for name, settings in _FILTERS.items():
        entry_point = _ENTRY_POINTS.get(name, name)
        sections.append(f"[filter:{name}]\nuse = egg:swift#{entry_point}\n{settings}")
    return "\n".join(sections) + "\n"
