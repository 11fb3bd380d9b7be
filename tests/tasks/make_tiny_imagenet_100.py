"""Make Tiny-ImageNet-100, the images of docs/reproduction.md, of the unpacked Tiny-ImageNet.

    python -m tests.tasks.make_tiny_imagenet_100 tiny-imagenet-200 data/tiny-imagenet-100

Files are linked: the new folder takes no space. The list is docs/measured/tiny-imagenet-100.txt.
"""

import sys
from pathlib import Path

LIST = Path(__file__).parents[2] / "docs" / "measured" / "tiny-imagenet-100.txt"


def make(source: Path, out: Path, listed: str) -> int:
    """Link the listed images of Tiny-ImageNet into train/CLASS and val/CLASS -> how many."""
    made = 0
    for line in listed.splitlines():
        if line.startswith("#"):
            continue
        kind, label, *numbers = line.split()
        folder = source / ("val/images" if kind == "val" else f"train/{label}/images")
        place = out / kind / label
        place.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            name = f"{'val' if kind == 'val' else label}_{number}.JPEG"
            if not (place / name).exists():
                (place / name).symlink_to((folder / name).resolve(strict=True))
            made += 1
    return made


if __name__ == "__main__":
    source, out = map(Path, sys.argv[1:])
    print(f"{make(source, out, LIST.read_text()):,} images in {out}")
