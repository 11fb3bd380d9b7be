"""Folders of dense tasks, given to commands that take images: masks are no photos."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.hostile.case import Case, case
from tests.hostile.world import EVALUATED, LEWEL

# Images of the training set and of all, by fixture.
COUNTS = {"masks": (8, 12), "voc": (10, 10), "coco": (6, 12)}


def rows(allowed: tuple[int, ...]) -> Callable[[Path, str], str | None]:
    """A check of the number of embedded images, none of which is a mask."""

    def check(place: Path, said: str) -> str | None:
        with zipfile.ZipFile(place / "new.npz"), np.load(place / "new.npz") as arrays:
            paths = arrays["path"].tolist()
        masks = [path for path in paths if "mask" in path.lower() or "Segmentation" in path]
        if masks:
            return f"{masks[0]} is a mask, not a photo"
        return None if len(paths) in allowed else f"embedded {len(paths)} images of {allowed}"

    return check


def cases() -> list[Case]:
    found = []
    for name, allowed in COUNTS.items():
        found += [
            case(
                "runs",
                f"embed {{run}} {{{name}}} --out new.npz {EVALUATED}",
                f"a {name} folder",
                check=rows(allowed),
            ),
            case(
                "refused",
                f"knn {{run}} --data {{{name}}} --out new {EVALUATED}",
                f"a {name} folder, which has no classes of images",
            ),
            case(
                "warns",
                f"pretrain {{{name}}} --out new {LEWEL.replace('size 8', 'size 4')} --epochs 1",
                f"a {name} folder",
                says="masks|JPEGImages|annotations|COCO|VOC",
            ),
            case(
                "warns",
                f"pack {{{name}}} new --workers 0",
                f"a {name} folder",
                says="masks|JPEGImages|annotations|COCO|VOC",
            ),
            case("runs", f"maps {{run}} {{{name}}} --limit 3 --out new", f"a {name} folder"),
        ]
        if name != "coco":
            found.append(
                case(
                    "runs",
                    f"where {{run}} --data {{{name}}} --limit 4 --accelerator cpu",
                    f"a {name} folder",
                    says="pointing game: the maximum",
                )
            )
    return found
