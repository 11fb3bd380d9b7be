"""The shapes of the scenes: ten classes and three distractors, each an outline and a texture."""

from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np
import numpy.typing as npt

Plane = npt.NDArray[np.floating[Any]]  # float32; NumPy's stubs widen it at each Python float
Figure = Callable[[Plane, Plane, float, float], tuple[Plane, Plane]]

# Each figure takes coordinates u, v (H, W) in units of the object's radius, the pitch and the
# phase of its texture; it returns a signed distance to its outline (negative inside) and a wave of
# about [-1, 1] (both H, W). The constants give every outline an area of pi: the area must not
# reveal the class, and the main object must be the largest whatever its class.


def _polar(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    return np.hypot(u, v), np.arctan2(v, u)


def _target(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    r = np.hypot(u, v)
    return r - 1.0, np.cos(1.2 * pitch * r + phase)


def _gear(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    r, angle = _polar(u, v)
    return r - 0.995 - 0.1 * np.cos(12.0 * angle), np.cos(round(pitch) * angle + phase)


def _board(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    distance = np.maximum(np.abs(u), np.abs(v)) - 0.886
    return distance, 2.0 * np.sin(0.8 * pitch * u + phase) * np.sin(0.8 * pitch * v + phase)


def _tent(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    return np.maximum(0.866 * np.abs(u) + 0.5 * v, -v) - 0.778, np.cos(pitch * v + phase)


def _star(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    r, angle = _polar(u, v)
    folded = np.abs(np.remainder(angle, 0.4 * pi) - 0.2 * pi)  # 0 at a tip, pi / 5 at a notch
    distance = r * np.cos(folded - 0.944) - 0.772
    return distance, np.cos(1.4 * pitch * distance + phase)


def _cross(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    across, along = np.abs(u), np.abs(v)
    low, high = np.minimum(across, along), np.maximum(across, along)
    zigzag = 0.45 * np.arcsin(np.sin(5.0 * u))
    return np.maximum(high - 1.145, low - 0.42), np.cos(pitch * (v + zigzag) + phase)


def _wreath(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    r, angle = _polar(u, v)
    return np.abs(r - 0.85) - 0.294, np.cos(round(pitch) * angle + 7.0 * r + phase)


def _flower(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    r, angle = _polar(u, v)
    petals = np.cos(5.0 * angle)
    return r - 0.984 - 0.25 * petals, 2.0 * petals * np.cos(pitch * r + phase)


def _moon(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    distance = np.maximum(np.hypot(u, v) - 1.325, 1.02 - np.hypot(u - 0.815, v))
    blotches = np.cos(pitch * u + 2.0 * np.sin(3.7 * v + phase)) + np.cos(
        0.8 * pitch * v + 2.0 * np.sin(2.9 * u - phase)
    )
    return distance, blotches


def _beetle(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    dots = np.cos(pitch * u + phase) + np.cos(pitch * v + phase) - 0.35
    return np.hypot(u / 1.3, v * 1.3) - 1.0, dots


def _blob(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    return np.hypot(u, v + 0.3 * np.sin(2.0 * u + phase)) - 1.0, 0.5 * u


def _bar(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    return np.maximum(np.abs(u) - 1.7, np.abs(v) - 0.3), 0.3 * u


def _wedge(u: Plane, v: Plane, pitch: float, phase: float) -> tuple[Plane, Plane]:
    return np.maximum(np.hypot(u, v) - 1.3, v), 0.5 * v + 0.3


# (name, figure, how far it reaches from its centre in radii)
FIGURES: tuple[tuple[str, Figure, float], ...] = (
    ("target", _target, 1.0),
    ("gear", _gear, 1.1),
    ("board", _board, 1.26),
    ("tent", _tent, 1.56),
    ("star", _star, 1.32),
    ("cross", _cross, 1.22),
    ("wreath", _wreath, 1.15),
    ("flower", _flower, 1.24),
    ("moon", _moon, 1.33),
    ("beetle", _beetle, 1.31),
    ("blob", _blob, 1.35),
    ("bar", _bar, 1.73),
    ("wedge", _wedge, 1.3),
)
CLASSES: tuple[str, ...] = tuple(name for name, _, _ in FIGURES[:10])
