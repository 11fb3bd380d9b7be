"""URLs that users give: shown without credentials, and patterns of several files."""

import re
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from lewel.errors import UserError

CHAIN: Final = "::"  # between the links of fsspec's chained URLs
MOST: Final = 1_000_000  # files that one pattern may name
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
    if not is_url(place):
        return place
    return CHAIN.join(_bare(link) if is_url(link) else link for link in _links(place))


def without_secrets(text: str, place: str) -> str:
    """A text in which the credentials of a place are left out."""
    secrets = set[str]()
    for link in _links(place) if is_url(place) else ():
        user, query = _user(link), _split(link).query
        secrets |= {f"{user}@", user.partition(":")[2], f"?{query}", query}
    for secret in sorted(secrets | set(map(unquote, secrets)), key=len, reverse=True):
        text = text.replace(secret, "") if len(secret) > 1 else text
    return text


def _links(place: str) -> list[str]:
    """The URLs of a chain; two colons in brackets are of an IPv6 address."""
    return re.split(rf"{CHAIN}(?![^\[\]]*\])", place)


def _bare(url: str) -> str:
    """One URL of a chain, without credentials."""
    user = _user(url)
    parts = _split(url.replace(f"://{user}@", "://", 1) if user else url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def _user(url: str) -> str:
    """User and password of a URL; they may hold characters that should have been escaped."""
    rest = url.partition("://")[2]
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    port = host.rpartition("]")[2].partition(":")[2]  # after the brackets of IPv6
    split = "@" not in host and port and not port.isdecimal()  # a password with a slash
    return (rest if split else host).rpartition("@")[0]


def _split(place: str) -> SplitResult:
    try:
        return urlsplit(place)
    except ValueError as error:  # it may hold a password, so it is not repeated
        raise UserError(f"The URL cannot be read ({error}): expected scheme://host/path.") from None


def expanded(pattern: str) -> list[str]:
    """The places that a pattern with braces names.

    >>> expanded("train-{000..002}.tar")
    ['train-000.tar', 'train-001.tar', 'train-002.tar']
    """
    if (span := _RANGE.search(pattern)) is not None:
        first, last = span.groups()
        numbers = range(int(first), min(int(last), int(first) + MOST) + 1)
        words = [f"{number:0{len(first)}d}" for number in numbers]
    elif (span := _CHOICE.search(pattern)) is not None:
        words = span.group(1).split(",")
    else:
        return [pattern]
    head, tail = pattern[: span.start()], pattern[span.end() :]
    return [place for word in words for place in expanded(head + word + tail)]
