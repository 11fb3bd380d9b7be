"""Folders of odd images: few, corrupt, deep, tiny, moving, linked in circles, oddly named."""

import os
import re
import shlex
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.hostile.case import Case, Right, case
from tests.hostile.world import EVALUATED, LEWEL, labelled, photos, picture

PRETRAIN = f"pretrain given --out new {LEWEL} --epochs 1"
EMBED = f"embed {{run}} given --out new.npz {EVALUATED}"
PACK = "pack given new --workers 0"
MAPS = "maps {run} given --out new --limit 4"
WHERE = "where {run} --data given --limit 8 --accelerator cpu"
ALL = (PRETRAIN, EMBED, PACK, MAPS)
GOOD = 20  # images that are right, beside the odd one


def beside(write: Callable[[Path], object]) -> Callable[[Path], None]:
    """A prepare: a folder of good images and an odd one."""

    def prepare(place: Path) -> None:
        write(photos(place / "given", GOOD))

    return prepare


def alone(*contents: bytes) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        (place / "given").mkdir()
        for number, content in enumerate(contents):
            (place / "given" / f"{number}.jpg").write_bytes(content)

    return prepare


def bomb(path: Path, side: int = 60_000) -> None:
    """A PNG of a few bytes that says that it has billions of pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def _deep(folder: Path) -> None:
    Image.fromarray(np.full((40, 48), 40_000, np.uint16)).save(folder / "000-deep.png")


def _moving(folder: Path) -> None:
    frames = [picture(number).convert("P") for number in range(3)]
    frames[0].save(folder / "000-moving.gif", save_all=True, append_images=frames[1:])


def _loop(folder: Path) -> None:
    (folder / "again").symlink_to("..", target_is_directory=True)
    (folder / "self.jpg").symlink_to("self.jpg")


def _broken(folder: Path) -> None:
    (folder / "000-gone.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(folder / "000-pipe.jpg")
    (folder / "000-folder.jpg").mkdir()


def _nested(folder: Path) -> None:
    photos(folder / "/".join("abcdefghijklmnopqrstuvwxyz") / "end", 2, 500)


# Odd, but an image or no image: it is read, or it is left out.
READ: dict[str, Callable[[Path], object]] = {
    "16-bit": _deep,
    "one pixel": lambda f: picture(1, 1, 1).save(f / "000-pixel.png"),
    "one row": lambda f: picture(1, 3000, 1).save(f / "000-row.png"),
    "CMYK": lambda f: picture(1).convert("CMYK").save(f / "000-cmyk.jpg"),
    "a palette with transparency": lambda f: (
        picture(1).convert("P").save(f / "000-palette.png", transparency=0)
    ),
    "grey with alpha": lambda f: picture(1).convert("LA").save(f / "000-la.png"),
    "one bit": lambda f: picture(1).convert("1").save(f / "000-bit.png"),
    "floating-point": lambda f: picture(1).convert("F").save(f / "000-float.tif"),
    "an animated GIF": _moving,
    "links in a circle": _loop,
    "broken links, pipes and folders": _broken,
    "26 folders deep": _nested,
    "a capital ending": lambda f: picture(1).save(f / "000-CAPITAL.JPG"),
    "another ending than its format": lambda f: picture(1).save(f / "000-png.jpg", format="PNG"),
    "a hidden file": lambda f: (f / ".hidden.jpg").write_bytes(b"no picture"),
    "a text beside": lambda f: (f / "readme.txt").write_text("no picture"),
}
# One corrupt image among good ones: named, and not more than that.
CORRUPT: dict[str, Callable[[Path], object]] = {
    "an empty file": lambda f: (f / "000-bad.jpg").write_bytes(b""),
    "a page of HTML": lambda f: (f / "000-bad.jpg").write_text("<html>404 Not Found</html>"),
    "half a JPEG": lambda f: (f / "000-bad.jpg").write_bytes((f / "000.jpg").read_bytes()[:500]),
    "a decompression bomb": lambda f: bomb(f / "000-bad.png"),
    "random bytes": lambda f: (f / "000-bad.jpg").write_bytes(os.urandom(2000)),
}
NAMES = (
    "with space",
    "it's",
    'say "hi"',
    "$HOME",
    "`id`",
    "semi;colon",
    "and&and",
    "emoji-\U0001f600",
    "new\nline",
    "tab\there",
    "[red]markup[/red]",
    "[/]",
    ":smile:",
    "-dash",
    "--out",
    "umlaut-\u00e4\u0308",
    "back\\slash",
    "star*?",
    "a" * 200,
    "<script>alert(1)<",
    "{run_}",
    "%s%d",
    "100%",
)


def pasted(name: str) -> Callable[[Path, str], str | None]:
    """The printed commands, pasted into a shell, name the same path."""

    def check(place: Path, said: str) -> str | None:
        _, _, after = said.partition("next:\n")
        commands, words = 0, []
        for line in re.split(r"\n(?=  \S*lewel )", "\n" + after)[1:]:
            try:
                words += shlex.split(line, comments=True)
            except ValueError:
                return f"printed a command that no shell takes: {line.strip()}"
            commands += 1
        if not commands:
            return "printed no next command"
        return None if any(name in word for word in words) else "next commands name another path"

    return check


def named(name: str) -> Callable[[Path], None]:
    """A prepare: images with an odd name in a folder with an odd name."""

    def prepare(place: Path) -> None:
        folder = labelled(place / name, 12)
        picture(7).save(folder / "cat" / f"{name.replace('/', '')[:180]}.jpg")

    return prepare


def cases() -> list[Case]:
    found = [
        case("runs", line, why, prepare=beside(write))
        for why, write in READ.items()
        for line in ALL
    ]
    for why, write in CORRUPT.items():
        for line in ALL:
            # Of few images one is more than the corrupt fraction that a run allows.
            right: Right = {PRETRAIN: "clear", PACK: "warns"}.get(line, "stops")  # type: ignore[assignment]
            found.append(case(right, line, why, prepare=beside(write), says="corrupt"))
    for line in (*ALL, WHERE):
        found += [
            case("stops", line, "nothing but corrupt images", prepare=alone(b"no", b"picture")),
            case("refused", line, "an empty folder", prepare=alone()),
        ]
    found += [
        case("refused", PRETRAIN, "one image", prepare=lambda place: photos(place / "given", 1)),
        case("refused", WHERE, "one image", prepare=lambda place: photos(place / "given", 1)),
        case("runs", EMBED, "one image", prepare=lambda place: photos(place / "given", 1)),
        case("runs", PACK, "one image", prepare=lambda place: photos(place / "given", 1)),
        case("runs", MAPS, "one image", prepare=lambda place: photos(place / "given", 1)),
    ]
    for name in NAMES:
        out = f"out {name}"[:200]
        data = f"./{name}"
        found += [
            case(
                "runs",
                ["pretrain", data, f"--out=./{out}", *LEWEL.split(), "--epochs", "1"],
                f"a folder called {name!r}",
                prepare=named(name),
                check=pasted(out),
            ),
            case(
                "runs",
                ["pack", data, f"./{out}", "--workers", "0"],
                f"a folder called {name!r}",
                prepare=named(name),
                check=pasted(out),
            ),
            case(
                "runs",
                ["knn", "{run}", "--data", data, f"--out=./{out}", *EVALUATED.split()],
                f"a folder called {name!r}",
                prepare=named(name),
                check=pasted(out),
            ),
        ]
    return found
