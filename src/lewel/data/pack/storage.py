"""How data at a URL is read: settings that commands share."""

from typing import Final, NamedTuple

from lewel.data.pack.urls import is_url

MINUTES: Final = 30.0  # --storage-timeout


class Storage(NamedTuple):
    """How data at a URL is read."""

    timeout: float = MINUTES  # minutes without an answer after which a command stops
    cache: str | None = None  # a folder for fetched blocks; None is shared memory
    cache_bytes: int = 200 * 10**9


DEFAULT_STORAGE: Final = Storage()


def note_on_cache(data: str, storage: Storage) -> list[str]:
    """A note where a cache was asked for and is not used."""
    if storage.cache is None or is_url(data):
        return []
    return [f"--cache has no effect: {data} is on this machine, not at a URL."]
