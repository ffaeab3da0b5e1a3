"""Check addresses of buckets, web servers and other stores, as users write them in settings.

Addresses are written to manifests and logs, so they must not contain passwords or tokens.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from nanoset_core.errors import ConfigError
from nanoset_core.storage.filesystems import WRAPPERS, is_known
from nanoset_core.untrusted import HIDDEN, without_secret_parameters, without_secrets

_PASSWORD = re.compile(r"[^/@:]*:.*@", re.DOTALL)
"""`user:password@` after the scheme of a URL; a password may contain a slash.

`host:80/x@y` matches, too, and is recognized by `_PORT`.
"""
_PORT = re.compile(r"[^/@:]*:[0-9]*(/|$)")
"""`host:port` after the scheme of a URL."""
_ENDPOINT = re.compile(r"(?i)https?://[^\s/?#]+(/[^\s?#]*)?")
"""Address of a server, perhaps with a path, but without a query."""
_WEB_SECRET = re.compile("[?#].*|//[^/]*@")
"""The query of a web address, or a user name before its host; either may be a secret."""


def check_address(url: str, where: str) -> None:
    """Check that a URL can be parsed, unlike `http://[::1`.

    Args:
        url: The URL.
        where: Place of the setting, for the error.

    Raises:
        ConfigError: Its host or port cannot be parsed.
    """
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        raise ConfigError(
            "this is not a URL",
            where=where,
            found=f"{url!r}: {error}",
            expected="scheme://host/path, with an IPv6 address in brackets and a port of digits",
            remedy="correct it",
        ) from error


def check_without_secrets(url: str, rest: str, where: str) -> None:
    """Check that a URL contains neither a password nor a query parameter with a secret.

    Args:
        url: The URL.
        rest: What follows its scheme.
        where: Place of the setting, for the error.

    Raises:
        ConfigError: The URL contains a secret, such as `user:password@` or `?sig=…`.
    """
    # `host:80/x@y` looks like `user:password@`, but is a port and a path.
    looks_like_password = _PASSWORD.match(rest) is not None
    has_port = _PORT.match(rest) is not None
    has_password = looks_like_password and not has_port
    has_secret_parameter = without_secret_parameters(url) != url
    if not has_password and not has_secret_parameter:
        return

    # Every error replaces the secrets in its texts, as far as `without_secrets` recognises them. If
    # it does not recognise this password, do not show the address at all.
    shown_address = url
    error_will_hide_secrets = without_secrets(url) != url
    if has_password and not error_will_hide_secrets:
        shown_address = HIDDEN
    raise ConfigError(
        "the address holds a query, or a user's name or password",
        where=where,
        found=shown_address,
        expected="an address without credentials",
        remedy=(
            "leave it out, since it would be written to manifests and logs. Give credentials as "
            "the package behind the scheme finds them (environment, profile, configuration file), "
            "or copy the text to a local folder first"
        ),
    )


def check_endpoint(endpoint: str) -> None:
    """Check the address of a server that speaks S3; an empty one stands for AWS.

    Raises:
        ConfigError: It contains credentials, or is not the address of a server.
    """
    where = "storage.endpoint_url"
    authority = endpoint.partition("//")[2].partition("/")[0]
    has_user = "@" in authority
    if has_user or without_secrets(endpoint) != endpoint:
        raise ConfigError(
            "the endpoint holds a user's name or password",
            where=where,
            found=endpoint,
            remedy=(
                "remove it, since it would be written to logs; credentials come by the usual AWS "
                "chain"
            ),
        )
    if endpoint and _ENDPOINT.fullmatch(endpoint) is None:
        raise ConfigError(
            "this is not the address of a server",
            where=where,
            found=repr(endpoint),
            expected="http://host:port or https://host",
            remedy="correct it",
        )


def check_readable(url: str, where: str, *, only_read: bool) -> None:
    """Check a URL of another store than S3, from which nanoset can only read.

    Args:
        url: The URL.
        where: Place of the setting, for the error.
        only_read: Whether nothing will be written.

    Raises:
        ConfigError: Something would be written, fsspec cannot read the URL, or the URL has a part
            that may be a secret.
    """
    scheme = url.partition("://")[0].lower()
    if only_read and scheme in WRAPPERS:
        raise ConfigError(
            "this scheme names no place of its own",
            where=where,
            found=url,
            expected=(
                "a path on a local or mounted file system, "
                "s3://bucket/prefix, gs://, hf://, abfs:// or https://"
            ),
            remedy="name the place that it wraps, or unpack the files into a local folder first",
        )
    if not only_read or not is_known(scheme):
        what = "only local folders and S3 can be used here"
        expected = "a path on a local or mounted file system, or s3://bucket/prefix"
        if only_read:
            what = "no file system of this name is known"
            expected += ", gs://, hf://, abfs://, https:// or another URL that fsspec knows"
        raise ConfigError(
            what,
            where=where,
            found=url,
            expected=expected,
            remedy="mount the place, or copy it to a local folder first",
        )
    has_query_or_user = not {"?", "#", "@"}.isdisjoint(url)
    if scheme.startswith("http") and has_query_or_user:
        raise ConfigError(
            "the address holds a query, or a user's name or password",
            where=where,
            found=_WEB_SECRET.sub(HIDDEN, url),
            expected="https://host/folder",
            remedy=(
                "leave it out, since it would be written to manifests and logs; "
                "copy what needs it to a local folder first"
            ),
        )
