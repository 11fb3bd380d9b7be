"""A summary of metrics.jsonl of bounded size: the curves of a run of any length."""

import json
from collections.abc import Iterable
from io import BytesIO
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

MOST = 4096  # rows of a metric; even, because a full table is halved by pairs
RECENT = 50  # last values of a metric, as they were written
COLUMNS = 4  # of a row: sum of epochs, lowest value, sum of values, highest value


class Point(NamedTuple):
    """A value of a metric."""

    epoch: float
    value: float


class Series:
    """The values of one metric in order, `width` of them to a row; width is a power of two.

    Sums are taken in pairs of pairs, so that the rows depend on the values alone, and not on how
    many were added at a time.
    """

    def __init__(self) -> None:
        self.width = 1
        self.rows: Numbers = np.empty((0, COLUMNS))
        self.rest: Numbers = np.empty((0, COLUMNS))  # rows of one value each, fewer than `width`
        self.count = self.missing = 0  # all values; those that are not finite, which no row has
        self.first: Point | None = None  # finite, as the last one
        self.last: Point | None = None
        self.recent: list[float] = []

    def extend(self, epochs: list[float], values: list[float]) -> None:
        """Add values in their order."""
        x, y = np.array(epochs, np.float64), np.array(values, np.float64)
        self.count += len(y)
        self.recent = (self.recent + y[-RECENT:].tolist())[-RECENT:]
        finite = np.isfinite(y) & np.isfinite(x)
        x, y = x[finite], y[finite]
        self.missing += len(values) - len(y)
        if not len(y):
            return
        self.first = self.first or Point(float(x[0]), float(y[0]))
        self.last = Point(float(x[-1]), float(y[-1]))
        self.rest = np.concatenate([self.rest, np.stack([x, y, y, y], 1)])
        while len(self.rest) >= self.width:
            room = MOST - len(self.rows)
            taken = min(room, len(self.rest) // self.width) * self.width
            full, self.rest = self.rest[:taken], self.rest[taken:]
            for _ in range(self.width.bit_length() - 1):
                full = paired(full)
            self.rows = np.concatenate([self.rows, full])
            if len(self.rows) == MOST:
                self.rows, self.width = paired(self.rows), 2 * self.width

    def points(self) -> Numbers:
        """Mean epoch, lowest, mean and highest value of each row, (N, 4)."""
        means: Numbers = self.rows / np.array([self.width, 1, self.width, 1])
        if not len(self.rest):
            return means
        (x, _, y, _), low, high = self.rest.mean(0), self.rest[:, 1].min(), self.rest[:, 3].max()
        return np.concatenate([means, [[x, low, y, high]]])

    def about(self) -> dict[str, Any]:
        """Everything but the rows, as plain values."""
        about = dict(self.__dict__)
        del about["rows"], about["rest"]
        return about

    def restore(self, about: dict[str, Any], rows: Numbers, rest: Numbers) -> None:
        """Take over what `about` gave, and the rows."""
        points = {name: about[name] and Point(*about[name]) for name in ("first", "last")}
        self.__dict__.update({**about, **points, "rows": rows, "rest": rest})


def paired(rows: Numbers) -> Numbers:
    """Two rows in one, (2 N, 4) -> (N, 4)."""
    one, two = rows[0::2], rows[1::2]
    return np.stack(
        [
            one[:, 0] + two[:, 0],
            np.minimum(one[:, 1], two[:, 1]),
            one[:, 2] + two[:, 2],
            np.maximum(one[:, 3], two[:, 3]),
        ],
        1,
    )


class Summary:
    """What pages and cards need of metrics.jsonl, in memory that does not grow with the run."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}  # in the order of their first values
        self.step = -1  # the last one
        self.steps = 0  # how many different ones
        self.epoch: float | None = None  # the last one

    @classmethod
    def of(cls, lines: Iterable[dict[str, Any]]) -> "Summary":
        """The summary of some lines."""
        summary = cls()
        summary.add(lines)
        return summary

    def add(self, lines: Iterable[dict[str, Any]]) -> None:
        """Add lines in their order; values that are no numbers are left out."""
        placed = []
        for line in lines:
            step, epoch = line.get("step"), line.get("epoch")
            if isinstance(step, int) and step > self.step:
                self.step, self.steps = step, self.steps + 1
            if isinstance(epoch, int | float):
                placed.append(line)
        if placed:
            self.epoch = float(placed[-1]["epoch"])
        for key in dict.fromkeys(chain.from_iterable(placed)):
            having = [line for line in placed if key in line]
            values = [line[key] for line in having]
            if set(map(type, values)) != {float}:
                having = [line for line in having if isinstance(line[key], int | float)]
                values = [line[key] for line in having]
            if values and key not in ("step", "epoch"):
                series = self.series.setdefault(key, Series())
                series.extend([line["epoch"] for line in having], values)

    def __bool__(self) -> bool:
        return self.epoch is not None or self.steps > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Summary) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def points(self, key: str) -> Numbers:
        """Mean epoch, lowest, mean and highest value of a metric over some steps, (N, 4)."""
        return self.series[key].points() if key in self.series else np.empty((0, 4))

    def before(self, key: str) -> float | None:
        """The value of a metric before training; None where it was first measured later."""
        point = self.series[key].first if key in self.series else None
        return None if point is None or point.epoch > 0 else point.value

    def last(self, key: str) -> float | None:
        """The last value of a metric."""
        point = self.series[key].last if key in self.series else None
        return None if point is None else point.value

    def recent(self, key: str) -> list[float]:
        """The last values of a metric, at most RECENT."""
        return self.series[key].recent if key in self.series else []

    def to_bytes(self, **more: Any) -> bytes:
        """All of it, and plain values of the caller's."""
        about = {key: one.about() for key, one in self.series.items()}
        plain = {"step": self.step, "steps": self.steps, "epoch": self.epoch, "series": about}
        tables = [rows for one in self.series.values() for rows in (one.rows, one.rest)]
        text = np.frombuffer(json.dumps(plain | more).encode(), np.uint8)
        file = BytesIO()
        np.savez(file, text, *tables)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> tuple["Summary", dict[str, Any]]:
        """A summary, and the plain values; raises ValueError for other content."""
        try:
            with np.load(BytesIO(content), allow_pickle=False) as file:
                text, *tables = (file[name] for name in file.files)
            plain, summary = json.loads(text.tobytes()), cls()
            for number, (key, about) in enumerate(plain.pop("series").items()):
                summary.series[key] = Series()
                summary.series[key].restore(about, *tables[2 * number : 2 * number + 2])
            summary.step, summary.steps = plain.pop("step"), plain.pop("steps")
            summary.epoch = plain.pop("epoch")
        except Exception as error:  # zip files have many ways of being damaged
            raise ValueError("no summary of metrics") from error
        return summary, plain
