"""What a page tells of one run, before it becomes text and pictures."""

from dataclasses import dataclass, field
from typing import Any

from lewel.report.gallery import Gallery


@dataclass(frozen=True)
class Result:
    """One question that was answered of a run."""

    cells: dict[str, str]  # column -> what is printed
    per_class: dict[str, float] = field(default_factory=dict)  # accuracy in [0, 1]
    mistakes: tuple[str, ...] = ()  # the commonest confusions, in words
    sweep: str = ""  # k-NN: the accuracy for each k


@dataclass(frozen=True)
class Picture:
    """A picture file by its name."""

    name: str
    content: bytes


@dataclass(frozen=True)
class ToldRun:
    """A run folder, read: whatever is missing in it is empty here."""

    name: str
    path: str
    headline: str = ""  # one line: method, network, data
    progress: str = ""  # how far it is, in words
    command: str = ""  # what to type to repeat it
    config_text: str = ""  # config.yaml, word for word
    highlights: dict[str, str] = field(default_factory=dict)  # the few numbers that matter most
    facts: dict[str, str] = field(default_factory=dict)  # what was trained, by name
    settings: dict[str, str] = field(default_factory=dict)  # every one, by dotted key
    metrics: list[dict[str, Any]] = field(default_factory=list)  # a line for each step
    results: tuple[Result, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    bad_images: tuple[tuple[str, str], ...] = ()  # image and reason
    views: bytes | None = None  # what the network saw, a PNG
    predictions: tuple[Picture, ...] = ()
    gallery: Gallery | None = None
    problems: tuple[str, ...] = ()  # what could not be read, a sentence each

    @property
    def is_empty(self) -> bool:
        """Whether the run has not written anything yet."""
        return not self.config_text and not self.metrics
