"""How data at a URL is read: settings that commands share."""

from typing import Final, NamedTuple

MINUTES: Final = 30.0  # --storage-timeout


class Storage(NamedTuple):
    """How data at a URL is read."""

    timeout: float = MINUTES  # minutes without an answer after which a command stops
    cache: str | None = None  # a folder for fetched blocks; None is shared memory
    cache_bytes: int = 200 * 10**9


DEFAULT_STORAGE: Final = Storage()
