"""What lewel did not write is never replaced without --overwrite; what it wrote itself may be."""

from collections.abc import Callable
from pathlib import Path

from tests.hostile.case import Case, bring, case
from tests.hostile.world import DETECTED, EVALUATED, LEWEL, SEGMENTED, TRAINED

MINE = "years of somebody's work\n"


def holding(*names: str) -> Callable[[Path], None]:
    """A prepare that writes foreign files."""

    def prepare(place: Path) -> None:
        for name in names:
            path = place / name
            for fixture in ("run", "other", "pack"):
                if name.startswith(f"{fixture}/"):
                    bring(place, fixture)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(MINE)

    return prepare


HUB = "export timm/test_resnet --random-init --to hub"

# A command that writes, and the foreign files in its way.
REFUSED = {
    "import {foreign.pth} --out x": ("x/card.json",),
    "import {foreign.pth} --out y": ("y/backbone.safetensors",),
    "import {foreign.pth} --out z": ("z",),
    "import {foreign.pth} --out w": ("w/notes.txt", "w/config.yaml"),
    "report {run} --out x/card.json": ("x/card.json",),
    "report {run} --out notes.txt": ("notes.txt",),
    "report {run} --out page.html": ("page.html",),
    "report {run} --out {run}/card.json": (),
    "report {run} --out {run}/config.yaml": (),
    "report {run} --out {run}/backbone.safetensors": (),
    "report {run} --out {run}": (),
    "report {run}": ("run/report.html",),
    "export {run} --to torch-export --out mine.pt2": ("mine.pt2",),
    "export {run} --to onnx --out mine.onnx": ("mine.onnx",),
    "export {run} --to torch-export --out folder": ("folder/torch-export.pt2",),
    "export {run} --to torch-export": ("run/export/torch-export.pt2",),
    "export timm/test_resnet --random-init --to timm --out x/backbone.safetensors": (
        "x/backbone.safetensors",
    ),
    f"{HUB} --out a": ("a/model.safetensors",),
    f"{HUB} --out b": ("b/config.json",),
    f"{HUB} --out c": ("c",),
    f"{HUB} --out d/e": ("d",),
    f"{HUB} --out f.safetensors": ("f.safetensors",),
    f"{HUB} --out {{coco}}/annotations/instances_val2017.json": (),
    f"embed {{run}} {{plain}} --out mine.npz {EVALUATED}": ("mine.npz",),
    f"embed {{run}} {{plain}} --out mine.parquet {EVALUATED}": ("mine.parquet",),
    f"embed {{run}} {{plain}} {EVALUATED}": ("run/features.npz",),
    f"embed {{run}} {{plain}} --out x/mine.npz {EVALUATED}": ("x/mine.npz.parts/000000.npy",),
    "maps {run} {plain} --out folder": ("folder/maps.html",),
    "maps {run} {plain} --out notes.txt": ("notes.txt",),
    "maps {run} {plain} --out {plain}": (),
    "maps {run} {plain}": ("run/maps/maps.png",),
    f"pretrain {{plain}} --out x {LEWEL} --epochs 1": ("x/notes.txt",),
    f"pretrain {{plain}} --out y {LEWEL} --epochs 1": ("y/card.json", "y/backbone.safetensors"),
    f"pretrain {{plain}} --out z {LEWEL} --epochs 1": ("z",),
    f"pretrain {{plain}} --out v {LEWEL} --epochs 1": ("v/config.yaml",),
    "pack {plain} x --workers 0": ("x/notes.txt",),
    "pack {plain} y --workers 0": ("y/train-000000.tar",),
    "pack {plain} z --workers 0": ("z",),
    "pack {plain} v --workers 0": ("v/lewel-pack.json",),
    "pack {plain} {run} --workers 0": (),
    "pack {plain} {plain} --workers 0": (),
    "pack {photos} {photos}/cat --workers 0": (),
    f"knn {{run}} --data {{photos}} --out x {EVALUATED}": ("x",),
    "bench step --rounds 1 --out x": ("x",),
}

# Results that cannot be read are damaged: it stops.
STOPS = {
    f"knn {{run}} --data {{photos}} --out y {EVALUATED}": ("y/results/knn.json",),
    f"linear {{run}} --data {{photos}} --out y {TRAINED}": ("y/results/linear.json",),
    f"segment {{run}} --data {{masks}} --out y {SEGMENTED}": ("y/results/segment.json",),
    f"detect {{run}} --data {{coco}} --out y {DETECTED}": ("y/results/detect.json",),
}


def twice(line: str) -> Callable[[Path], None]:
    """A prepare that has run the command before."""

    def prepare(place: Path) -> None:
        import contextlib
        import io
        import os

        from lewel.cli.main import run
        from tests.hostile.case import WORLD

        words = line.replace("{world}", str(place.parent / WORLD))
        for name in ("run", "plain", "foreign.pth"):
            if f"{{{name}}}" in words:
                bring(place, name)
                words = words.replace(f"{{{name}}}", name)
        os.chdir(place)
        with contextlib.redirect_stdout(io.StringIO()):
            assert run(words.split()) == 0

    return prepare


# What lewel wrote itself may be written again.
AGAIN = (
    "report {run} --out page.html",
    "report {run}",
    "export {run} --to torch-export --out mine.pt2",
    f"embed {{run}} {{plain}} --out mine.npz {EVALUATED}",
    f"{HUB} --out folder",
    "maps {run} {plain} --limit 2 --out folder",
    "pack {plain} new --workers 0",
)
OVERWRITES = (
    ("report {run} --out page.html --overwrite", "page.html"),
    ("export {run} --to torch-export --out mine.pt2 --overwrite", "mine.pt2"),
    (f"{HUB} --out a --overwrite", "a/model.safetensors"),
    (f"embed {{run}} {{plain}} --out mine.npz --overwrite {EVALUATED}", "mine.npz"),
)


def usual_mode(*files: str) -> Callable[[Path, str], str | None]:
    """Written files may be read by all, as the umask says."""

    def check(place: Path, said: str) -> str | None:
        wrong = [name for name in files if not (place / name).stat().st_mode & 0o044]
        return f"{wrong[0]} may be read by its owner alone" if wrong else None

    return check


def replaced(name: str) -> Callable[[Path, str], str | None]:
    def check(place: Path, said: str) -> str | None:
        return f"{name} was not written" if (place / name).read_bytes() == MINE.encode() else None

    return check


def cases() -> list[Case]:
    found = [
        case(
            "refused",
            line,
            f"{', '.join(names) or 'a file of a run'} in the way",
            prepare=holding(*names),
        )
        for line, names in REFUSED.items()
    ]
    found += [
        case("stops", line, f"{names[0]} in the way", prepare=holding(*names))
        for line, names in STOPS.items()
    ]
    found += [case("runs", line, "its own file again", prepare=twice(line)) for line in AGAIN]
    found += [
        case("runs", line, "--overwrite", prepare=holding(name), check=replaced(name))
        for line, name in OVERWRITES
    ]
    files = ("backbone.safetensors", "heads.safetensors", "card.json", "config.yaml")
    return [
        *found,
        case(
            "runs",
            f"pretrain {{plain}} --out new {LEWEL} --epochs 1",
            "the mode of files",
            check=usual_mode(*(f"new/{name}" for name in files)),
        ),
        case(
            "runs",
            "import {foreign.pth} --out new",
            "the mode of files",
            check=usual_mode("new/backbone.safetensors", "new/card.json"),
        ),
        case(
            "runs",
            "pack {plain} new --workers 0",
            "the mode of files",
            check=usual_mode("new/lewel-index.json", "new/lewel-samples.bin"),
        ),
    ]
