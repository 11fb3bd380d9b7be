"""Facts about images and machine, and the settings that are chosen for them."""

from dataclasses import dataclass
from typing import Any, Literal

from lewel.config.settings import dotted


@dataclass(frozen=True)
class Facts:
    """What the choice depends on."""

    images: int
    side: int  # median of the images' shorter sides
    labelled: bool
    device: Literal["cpu", "cuda", "mps"]
    memory: int  # bytes of a device
    cores: int
    ranks: int = 1
    bf16: bool = False
    budget: float | None = None  # seconds
    speed: float | None = None  # images a second, of the chosen network
    long: bool | None = None  # whether the training is a long one; decided by its steps
    init: dict[str, str | int] | None = None  # the network of the weights to begin with
    batch_norm: bool = True  # of the network that is given; transformers have none
    workers: int = 0  # processes that read images; 0 where the training process does

    @property
    def core_hours(self) -> float:
        """CPU time that the budget allows; without one a quarter of an hour on each core."""
        return self.cores * (self.budget or 900) / 3600

    @property
    def time(self) -> str:
        """The CPU time in words."""
        assumed = "" if self.budget else ", a quarter of an hour on each core; --budget changes it"
        return f"{self.core_hours:.1f} core hours{assumed}"


@dataclass(frozen=True)
class Choice:
    """A setting, its value, and why."""

    key: str  # dotted
    value: Any
    because: str


class Choices:
    """Choices in their order; what the user has given stays."""

    def __init__(self, facts: Facts, given: dict[str, Any]) -> None:
        self.facts, self.given = facts, dotted(given)
        self.made: dict[str, Choice] = {}

    def __getitem__(self, key: str) -> Any:
        return self.made[key].value

    @property
    def images(self) -> int:
        """The images that are trained on."""
        limit = self["limit"] if "limit" in self.made else self.facts.images
        return min(limit, self.facts.images)

    def pick(self, key: str, value: Any, because: str) -> None:
        """Choose a value, unless it is given."""
        if key in self.given:
            value, because = self.given[key], "given"
        self.made[key] = Choice(key, value, because)

    def nested(self) -> dict[str, Any]:
        """The choices as nested settings, as a recipe holds them."""
        out: dict[str, Any] = {}
        for choice in self.made.values():
            *groups, name = choice.key.split(".")
            inside = out
            for group in groups:
                inside = inside.setdefault(group, {})
            inside[name] = choice.value
        return out


def power_of_two(most: int) -> int:
    """The largest power of two up to a number, 1 at least."""
    return 1 << max(0, most.bit_length() - 1)
