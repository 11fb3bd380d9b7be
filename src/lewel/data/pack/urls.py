"""URLs that users give: shown without credentials, and patterns of several files."""

import re
from typing import Final
from urllib.parse import unquote

from lewel.errors import UserError

CHAIN: Final = "::"  # between the links of fsspec's chained URLs
MOST: Final = 1_000_000  # files that one pattern may name
WEB: Final = ("http", "https")  # ? begins a query that may be a signature, # no file
LOCAL: Final = ("file", "local", "memory")  # ? and # are characters of a name
AZURE: Final = ("abfs", "abfss", "az", "wasb", "wasbs")  # container@account
_LINK = re.compile(rf"{CHAIN}(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")


def is_url(place: str) -> bool:
    """Whether a place is a URL, not a path."""
    return "://" in place


def shown(place: str) -> str:
    """A place without user, password and query, for messages and files.

    >>> shown("sftp://me:secret@host/photos?key=1")
    'sftp://host/photos'
    >>> shown("simplecache::s3://key:secret@bucket/photos")
    'simplecache::s3://bucket/photos'
    """
    return CHAIN.join(_bare(link) for link in _LINK.split(place))


def without_secrets(text: str, place: str) -> str:
    """A text in which the credentials of a place are left out."""
    secrets = set[str]()
    for link in _LINK.split(place):
        user, query = _user(link), split_query(link)[1]
        secrets |= {f"{user}@", user.partition(":")[2], f"?{query}", query}
    for secret in sorted(secrets | set(map(unquote, secrets)), key=len, reverse=True):
        text = text.replace(secret, "") if len(secret) > 1 else text
    return text


def scheme_of(url: str) -> str:
    """The protocol of a URL; of a chain the last, where the files are."""
    return _LINK.split(url)[-1].partition("://")[0].lower()


def split_query(url: str) -> tuple[str, str]:
    """A URL without its query, and the query."""
    if not is_url(url) or scheme_of(url) in LOCAL:
        return url, ""
    head, _, query = url.partition("?")
    return (head.partition("#")[0] if scheme_of(url) in WEB else head), query


def _bare(link: str) -> str:
    """One URL of a chain, without credentials."""
    user = _user(link)
    return split_query(link.replace(f"://{user}@", "://", 1) if user else link)[0]


def _user(url: str) -> str:
    """User and password of a URL; they may hold characters that should have been escaped."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() in LOCAL:
        return ""
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    _, colon, port = host.rpartition("]")[2].partition(":")  # after the brackets of IPv6
    split = "@" not in host and colon and not port.isdecimal()  # a password with a slash
    user = (rest if split else host).rpartition("@")[0]
    return "" if scheme.lower() in AZURE and ":" not in user else user


def expanded(pattern: str) -> list[str]:
    """The places that a pattern with braces names.

    >>> expanded("train-{000..002}.tar")
    ['train-000.tar', 'train-001.tar', 'train-002.tar']
    """
    if (span := _RANGE.search(pattern)) is not None:
        first, last = span.groups()
        if int(last) - int(first) >= MOST:
            raise UserError(
                f"{span.group()} names {int(last) - int(first) + 1:,} files: expected at most "
                f"{MOST:,}."
            )
        words = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    elif (span := _CHOICE.search(pattern)) is not None:
        words = span.group(1).split(",")
    else:
        return [pattern]
    head, tail = pattern[: span.start()], pattern[span.end() :]
    return [place for word in words for place in expanded(head + word + tail)]
