"""Nearest neighbours of a few images before and after training, for a page."""

from dataclasses import dataclass

from PIL import Image

from lewel.pages.pictures import Pixels, data_uri, shrunk


@dataclass(frozen=True)
class Thumb:
    """A small image, and its class where there are labels."""

    name: str
    label: str | None
    image: Pixels  # (S, S, 3)


@dataclass(frozen=True)
class Query:
    """An image and its nearest neighbours, the nearest first."""

    image: Thumb
    before: tuple[Thumb, ...]  # by the network that training began with
    after: tuple[Thumb, ...]


@dataclass(frozen=True)
class Neighbours:
    """Some queries with their neighbours in a bank of images."""

    queries: tuple[Query, ...]
    bank: int  # number of images
    held_out: bool  # whether the queries are validation images
    other_weights: bool = False  # whether training began with other weights (--init)

    @property
    def titles(self) -> tuple[str, str]:
        """The names of the two rows of each query."""
        first = "Weights of --init" if self.other_weights else "Randomly initialised"
        return first, "After training"

    @property
    def summary(self) -> str:
        """What is shown, and how many neighbours have the class of their query."""
        kind = "validation images" if self.held_out else "images"
        words = (
            f"{len(self.queries)} {kind} and their nearest neighbours among {self.bank:,} training "
            "images, by the cosine similarity of features."
        )
        rows = [(query.image.label, query.before, query.after) for query in self.queries]
        if any(label is None for label, _, _ in rows):
            return words
        before = sum(one.label == label for label, found, _ in rows for one in found)
        after = sum(one.label == label for label, _, found in rows for one in found)
        total = sum(len(found) for _, _, found in rows)
        first = "weights of --init" if self.other_weights else "randomly initialised network"
        return (
            f"{words} With the {first} {before} of {total} have the class of "
            f"their query, after training {after} (framed)."
        )


@dataclass(frozen=True)
class ShownThumb:
    """A small image for the template."""

    uri: str
    alt: str
    label: str | None
    same: bool  # whether it has the class of the query


Row = tuple[str, list[ShownThumb]]  # a title, and the neighbours


def shown_queries(
    neighbours: Neighbours, side: int, quality: int
) -> list[tuple[ShownThumb, list[Row]]]:
    """Each query with its rows of neighbours, in pictures of at most `side` pixels."""
    rows = []
    for query in neighbours.queries:
        own = query.image.label
        shown = [
            (title, [shown_thumb(one, own, side, quality) for one in found])
            for title, found in zip(neighbours.titles, (query.before, query.after), strict=True)
        ]
        rows.append((shown_thumb(query.image, None, side, quality), shown))
    return rows


def shown_thumb(thumb: Thumb, own: str | None, side: int, quality: int) -> ShownThumb:
    """A small image; `own` is the class of its query."""
    uri = data_uri(shrunk(Image.fromarray(thumb.image), side), quality)
    words = thumb.name if thumb.label is None else f"{thumb.label}, {thumb.name}"
    return ShownThumb(uri, words, thumb.label, own is not None and thumb.label == own)
