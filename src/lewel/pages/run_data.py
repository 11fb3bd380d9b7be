"""The data of one run for a report."""

from dataclasses import dataclass, field

from lewel.pages.gallery import Gallery
from lewel.pages.neighbours import Neighbours
from lewel.pages.reference import Reference
from lewel.train.summary import Summary


@dataclass(frozen=True)
class Result:
    """One evaluation of a run."""

    cells: dict[str, str]  # column -> text
    per_class: dict[str, float] = field(default_factory=dict)  # accuracy in [0, 1]
    mistakes: tuple[str, ...] = ()  # the most frequent confusions, as text
    sweep: str = ""  # k-NN: the accuracy for each k


@dataclass(frozen=True)
class Picture:
    """A picture file."""

    name: str
    content: bytes


@dataclass(frozen=True)
class RunData:
    """The content of a run folder; what is missing is empty."""

    name: str
    path: str
    headline: str = ""  # one line: method, network, data
    progress: str = ""  # epochs done, as text
    command: str = ""  # the command that repeats it
    config_text: str = ""  # the content of config.yaml
    highlights: dict[str, str] = field(default_factory=dict)  # the main metrics
    facts: dict[str, str] = field(default_factory=dict)  # method, backbone, data and so on
    settings: dict[str, str] = field(default_factory=dict)  # all, by dotted key
    metrics: Summary = field(default_factory=Summary)  # of metrics.jsonl
    results: tuple[Result, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    corrupt_images: tuple[tuple[str, str], ...] = ()  # image and reason
    views: bytes | None = None  # views.png
    predictions: tuple[Picture, ...] = ()
    gallery: Gallery | None = None
    neighbours: Neighbours | None = None
    reference: Reference | None = None  # of the recipe that the run follows
    departures: tuple[str, ...] = ()  # a sentence for each metric that leaves the reference
    problems: tuple[str, ...] = ()  # messages on what could not be read

    @property
    def is_empty(self) -> bool:
        """Whether the run has not written anything yet."""
        return not self.config_text and not self.metrics
