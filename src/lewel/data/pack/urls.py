"""URLs that users give: shown without credentials, and patterns of several files."""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from lewel.errors import UserError

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
    """
    if not is_url(place):
        return place
    parts = _split(place)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_secrets(text: str, place: str) -> str:
    """A text in which the credentials of a place are left out."""
    if not is_url(place):
        return text
    parts = _split(place)
    user = parts.netloc.rpartition("@")[0]
    secrets = [f"{user}@", user.partition(":")[2], f"?{parts.query}", parts.query]
    for secret in secrets:
        text = text.replace(secret, "") if len(secret) > 1 else text
    return text


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
