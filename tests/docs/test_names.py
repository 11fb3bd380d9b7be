"""What the documents name exists: functions, files, tests, flags, messages, rooms."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from lewel.cli.main import GROUPS, app
from lewel.config.recipes import list_recipes
from tests.docs.pages import PAGES, ROOT

TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
CODE = {page: re.findall(r"`([^`\n]+)`", text) for page, text in TEXTS.items()}
NAMED = sorted({word for words in CODE.values() for word in words})
OTHERS_FLAGS = {  # of every command, torchrun, srun, docker, mypy, zensical, programs of tests
    "--help",
    "--s3",
    "--signals-to-handle",
    "--kill-on-bad-exit",
    "--cpus-per-task",
    "--gpu-bind",
    "--gpus-per-task",
    "--max-restarts",
    "--ntasks",
    "--ntasks-per-node",
    "--open-mode",
    "--requeue",
    "--shutdown-timeout",
    "--gpus",
    "--shm-size",
    "--signal",
    "--strict",
    "--folder",
}
NOT_OUR_WORDS = (
    r"judg(e|es|ed|ing)\b|goes on\b|by heart|is told|whole or not there|\brivals?\b|\bspread\b|"
    r"fresh weights|\bsays\b|\bspeaks?\b|bad images|foreign file|/work/|/root/|/tmp/"
)


def flags() -> Iterator[str]:
    """Every flag of every command."""
    for name in (name for group in GROUPS.values() for name in group):
        subs = [app[name][sub] for sub in ("step", "data", "scale")] if name == "bench" else []
        for one in subs or [app[name]]:
            for argument in one.assemble_argument_collection():
                yield from argument.names


def messages() -> Iterator[str]:
    """Every text of the source, with an ellipsis for each value in it."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                )
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("name", [n for n in NAMED if re.fullmatch(r"lewel(\.\w+)+", n)])
def test_a_python_name_exists(name: str) -> None:
    words = name.split(".")
    if name == "lewel.methods":  # also the group of entry points
        return
    for cut in range(len(words), 0, -1):
        try:
            found: Any = import_module(".".join(words[:cut]))
        except ModuleNotFoundError:
            continue
        for word in words[cut:]:
            found = getattr(found, word)
        return
    raise AssertionError(name)


def test_files_and_tests_exist() -> None:
    rooms = "|".join(sorted(path.name for path in (ROOT / "src" / "lewel").iterdir()))
    defined = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = []
    for word in NAMED:
        if re.fullmatch(r"(tests|src|recipes|docs)/[\w./-]+", word):
            missing += [word] * (not (ROOT / word).exists())
        elif re.fullmatch(rf"({rooms})/[\w/]+\.py", word):
            missing += [word] * (not (ROOT / "src" / "lewel" / word).exists())
        elif re.fullmatch(r"test_\w+", word):
            missing += [word] * (f"def {word}(" not in defined)
    allowed = {"src/lewel/methods/yours.py"}
    assert set(missing) <= allowed, set(missing) - allowed


def test_flags_and_recipes_exist() -> None:
    known, recipes = set(flags()) | OTHERS_FLAGS, {*list_recipes(), *list_recipes("eval"), "paper"}
    strange = []
    for page, words in CODE.items():
        for word in words:
            for flag in re.findall(r"(?<!\S)--[a-z][\w.-]*", word):
                group = any(one.startswith(flag) for one in known) if flag.endswith(".") else False
                if flag not in known and not group and not flag.startswith("--options."):
                    strange.append(f"{page}: {flag}")
            given = re.findall(r"--recipe ([a-z]\w+)", word)
            strange += [f"{page}: {name}" for name in given if name not in recipes]
    assert not strange


def test_messages_of_troubleshooting_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", TEXTS["docs/troubleshooting.md"], re.MULTILINE)
    quoted = [row for row in rows if row not in {"byol", "moco_v2", "lewel_m"}]
    known = [*messages(), "Did you mean"]
    assert len(quoted) > 40
    unknown = [row for row in quoted if not any(row in text for text in known)]
    assert not unknown


@pytest.mark.parametrize("page", TEXTS)
def test_words(page: str) -> None:
    lines = [line for line in TEXTS[page].splitlines() if re.search(NOT_OUR_WORDS, line, re.I)]
    assert not lines


def test_the_readme_is_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 150


def test_the_diagram_of_rooms_is_the_contract_of_imports() -> None:
    source = (ROOT / "docs" / "diagrams" / "rooms.mmd").read_text()
    drawn = dict(re.findall(r'^  (\w+)\["(.+)"\]$', source, re.MULTILINE))
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [
        {name.strip().removeprefix("lewel.") for name in layer.split("|")}
        for layer in contract["contracts"][0]["layers"]
    ]
    level = {room: depth for depth, layer in enumerate(layers) for room in layer}
    assert set(drawn) == set(level) - {"errors", "files", "host", "progress"}
    for upper, lower in re.findall(r"^  ([\w &]+) --> ([\w &]+)$", source, re.MULTILINE):
        for one in upper.split(" & "):
            for other in lower.split(" & "):
                assert level[one] < level[other], (one, other)


@pytest.mark.parametrize("name", ["rooms", "image"])
def test_a_diagram_is_drawn_from_its_source(name: str) -> None:
    source = (ROOT / "docs" / "diagrams" / f"{name}.mmd").read_text()
    picture = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
    shown = re.sub(r"\s+", "", "".join(re.findall(r">([^<>]+)<", picture)))
    for label in re.findall(r'\["(.+)"\]', source):
        assert re.sub(r"\s+", "", label) in shown, label
