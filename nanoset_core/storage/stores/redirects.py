"""Decide which redirects of web servers are followed when raw text is read from them.

A web server may answer a request with a redirect, which is the address of another server. The other
server then decides what the raw text is, so that a redirect to another host is reported. Redirects
are refused if they give up encryption, or if a public server sends this process to an address
inside of a private network, where it might read what the public server cannot.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Any
from urllib.parse import urljoin, urlsplit

from nanoset_core.errors import StorageError
from nanoset_core.untrusted import safe_logger

logger = safe_logger(__name__)


def checking_redirects() -> Any:
    """Return a trace for the web client aiohttp that checks each redirect before it is followed.

    A redirect is an answer that names another address, in its header "Location", instead of sending
    the file. aiohttp follows it by itself. A *trace* is a list of functions that aiohttp calls at
    certain moments; if one raises an error, the request ends with this error.
    """
    from aiohttp import TraceConfig

    async def check(_session: Any, _context: Any, redirect: Any) -> None:
        """Check a redirect; aiohttp calls it with the answer of the server that redirects."""
        headers = redirect.response.headers
        location = headers.get("Location") or headers.get("URI") or ""
        source = str(redirect.url)
        check_redirect(source, urljoin(source, location))

    trace = TraceConfig()
    trace.on_request_redirect.append(check)
    return trace


def check_redirect(source: str, target: str) -> None:
    """Check that a redirect may be followed, and warn if it leads to another host.

        https://a.org/x  →  https://a.org/y      followed
        https://a.org/x  →  https://b.org/x      followed with a warning: another host decides
        https://a.org/x  →  http://a.org/x       refused: it leaves https
        https://a.org/x  →  https://10.0.0.1/x   refused: it leads into a private network

    Args:
        source: URL of the request.
        target: URL that the server redirects it to.

    Raises:
        StorageError: The redirect is refused. A private network includes this machine, and is only
            refused if the request was sent to a public host.
    """
    before = urlsplit(source)
    after = urlsplit(target)
    fault = None
    if before.scheme == "https" and after.scheme != "https":
        fault = "a redirect leaves https"
    elif _is_private(after.hostname) and not _is_private(before.hostname):
        fault = "a redirect leads into a private network"
    if fault is not None:
        raise StorageError(
            fault,
            where=_without_query(source),
            found=f"a redirect to {_without_query(target)}",
            expected="a file on the host that is named, or a redirect to a public host by https",
            remedy=(
                "name the address of the files themselves, or copy them to a local folder or a "
                "bucket first"
            ),
        )

    if before.netloc != after.netloc:
        _report_redirect(f"{before.scheme}://{before.netloc}", f"{after.scheme}://{after.netloc}")


@functools.cache
def _report_redirect(source: str, target: str) -> None:
    """Warn of a host that redirects to another one.

    It is cached, so that a process warns once about each pair of hosts.
    """
    logger.warning("%s redirects to another host: what is read comes from %s", source, target)


def _without_query(url: str) -> str:
    """Return a URL without the part that may contain a signature."""
    return url.partition("?")[0]


def _is_private(host: str | None) -> bool:
    """Return whether a host is this machine, or an address in a private network.

    Names are not looked up: except for `localhost`, every name counts as public.
    """
    if host is None or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:  # It is a name.
        return False
