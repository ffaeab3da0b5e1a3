"""Check addresses of buckets, web servers and other stores, as users write them in settings.

Addresses are written to manifests and logs, so they must not contain passwords or tokens.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from nanoset_core.errors import ConfigError
from nanoset_core.storage.stores.filesystems import ROOT_ADDRESSES, ROOT_SCHEMES, WRAPPERS, is_known
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


def check_without_secrets(url: str, where: str) -> None:
    """Refuse a URL that contains a password or an access token, since it would be written to logs.

        https://user:password@host/text     refused: a password
        https://host/text?sig=aB3x          refused: a secret parameter
        https://host/text                   accepted

    Args:
        url: The URL.
        where: Place of the setting, for the error, such as "raw_text".

    Raises:
        ConfigError: The URL contains one of them. The message hides it.
    """
    has_password = _has_password(url)
    has_secret_parameter = without_secret_parameters(url) != url
    if not has_password and not has_secret_parameter:
        return

    # Every error hides the secrets in its texts (`without_secrets`). A password in an unusual form
    # may not be recognised by that: then show nothing of the URL.
    shown_url = url
    is_password_recognised = without_secrets(url) != url
    if has_password and not is_password_recognised:
        shown_url = HIDDEN
    raise ConfigError(
        "the address holds a query, or a user's name or password",
        where=where,
        found=shown_url,
        expected="an address without credentials",
        remedy=(
            "leave it out, since it would be written to manifests and logs. Give credentials as "
            "the package behind the scheme finds them (environment, profile, configuration file), "
            "or copy the text to a local folder first"
        ),
    )


def _has_password(url: str) -> bool:
    """Return whether a URL begins with `user:password@` after its scheme."""
    after_scheme = url.partition("://")[2]
    looks_like_password = _PASSWORD.match(after_scheme) is not None
    has_port = _PORT.match(after_scheme) is not None  # host:80/x@y is a port and a path
    return looks_like_password and not has_port


def check_endpoint(endpoint: str, where: str) -> None:
    """Check the address of a server that speaks S3; an empty one stands for AWS.

    Args:
        endpoint: The address, such as `http://localhost:9000`.
        where: The setting or environment variable with the address, for the error.

    Raises:
        ConfigError: It contains credentials, or is not the address of a server.
    """
    if _has_credentials(endpoint):
        raise ConfigError(
            "the endpoint holds a user's name or password",
            where=where,
            found=endpoint,  # errors hide passwords and tokens in their texts
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


def _has_credentials(endpoint: str) -> bool:
    """Return whether the address of a server has a user, or a secret in its query."""
    authority = endpoint.partition("//")[2].partition("/")[0]
    has_user = "@" in authority
    return has_user or without_secrets(endpoint) != endpoint


def check_filesystem_url(url: str, where: str, *, only_read: bool) -> None:
    """Check the URL of a store other than S3, such as gs://bucket/prefix.

        URL                         as an input       as a place for outputs
        gs://bucket/prefix          accepted          accepted
        https://host/text           accepted          refused: cannot be written to
        zip://a.txt::https://host   refused: it reads another URL that is not checked
        nosuch://host               refused: no file system of this name

    Args:
        url: The URL.
        where: Place of the setting, for the error.
        only_read: True for an input; False for a place that outputs are written to.

    Raises:
        ConfigError: The scheme cannot be used, or the URL has a part that may be a secret.
    """
    scheme = url.partition("://")[0].lower()
    if only_read:
        # Inputs: any file system of fsspec, except those such as zip:// that read another URL.
        if scheme in WRAPPERS:
            raise _wrapper_error(url, where)
    elif scheme not in ROOT_SCHEMES:
        # Outputs: only the few stores that they are known to work with.
        raise _not_usable_error(
            "this kind of address cannot be used here",
            url,
            where,
            expected=ROOT_ADDRESSES,
        )

    if not is_known(scheme):
        raise _not_usable_error(
            "no file system of this name is known",
            url,
            where,
            expected="a path on a local or mounted file system, or s3://bucket/prefix, gs://, "
            "hf://, abfs://, https:// or another URL that fsspec knows",
        )

    # The query or user name of a web address is often a secret, whatever it is called.
    has_query_or_user = not {"?", "#", "@"}.isdisjoint(url)
    if scheme.startswith("http") and has_query_or_user:
        raise _web_secret_error(url, where)


def _wrapper_error(url: str, where: str) -> ConfigError:
    """Return the error for a scheme such as zip://, which only wraps another place."""
    return ConfigError(
        "this scheme names no place of its own",
        where=where,
        found=url,
        expected=(
            "a path on a local or mounted file system, "
            "s3://bucket/prefix, gs://, hf://, abfs:// or https://"
        ),
        remedy="name the place that it wraps, or unpack the files into a local folder first",
    )


def _not_usable_error(what: str, url: str, where: str, *, expected: str) -> ConfigError:
    """Return the error for a URL of a store that cannot be used for a setting."""
    return ConfigError(
        what,
        where=where,
        found=url,
        expected=expected,
        remedy="mount the place, or copy it to a local folder first",
    )


def _web_secret_error(url: str, where: str) -> ConfigError:
    """Return the error for a web address with a query or a user, which may be secrets."""
    return ConfigError(
        "the address holds a query, or a user's name or password",
        where=where,
        found=_WEB_SECRET.sub(HIDDEN, url),
        expected="https://host/folder",
        remedy=(
            "leave it out, since it would be written to manifests and logs; "
            "copy what needs it to a local folder first"
        ),
    )
