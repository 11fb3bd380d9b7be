"""What all settings share: checks, messages, merging, and YAML files."""

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from lewel.data.pack.storage import Storage
from lewel.errors import UserError
from lewel.files import LAST_LINE, is_cut, with_end


def _rises(value: tuple[float, float]) -> tuple[float, float]:
    low, high = value
    if not 0 < low <= high:
        raise ValueError(f"expected two rising positive numbers, not {low:g} {high:g}")
    return value


def _ends_at_one(value: tuple[float, float]) -> tuple[float, float]:
    if value[1] > 1:
        raise ValueError(f"expected fractions of the image, at most 1, not {value[1]:g}")
    return value


def in_bytes(text: str) -> int:
    """The bytes of a size such as 200GB, 1.5TB or 500MB; 0 where it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip(), re.IGNORECASE)
    power = 0 if found is None else " kmgt".index(found[2].lower() or " ")
    return 0 if found is None else int(float(found[1]) * 1000**power)


def _is_size(value: str) -> str:
    if in_bytes(value) < 10**6:
        raise ValueError(f"{value!r} is no size of a cache: expected 1MB or more, such as 200GB")
    return value


# Types that several commands share, so that a value is checked alike in all of them.
Range = Annotated[tuple[float, float], AfterValidator(_rises)]
CropScale = Annotated[Range, AfterValidator(_ends_at_one)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Inside = Annotated[float, Field(gt=0, lt=1)]  # of a training: neither its start nor its end
Side = Annotated[int, Field(ge=16)]  # of an image, in pixels
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch and NumPy both take
Precision = Literal["auto", "32", "tf32", "bf16-mixed", "16-mixed"]
ARITHMETIC = "Arithmetic: auto is tf32 on CUDA, 32 elsewhere; 32 is exact float32."


CacheSize = Annotated[str, AfterValidator(_is_size)]
CACHE = "A folder on a disk of this machine that keeps what is fetched from a URL."
CACHE_SIZE = "Bytes that the cache may hold, such as 200GB."
StorageTimeout = Annotated[float, Field(gt=0)]
STORAGE_TIMEOUT = "Minutes without an answer of storage after which a run saves and stops."


class Settings(BaseModel):
    """A group of settings: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _is_a_number(cls, value: Any, read: Callable[[Any], Any]) -> Any:
        found = read(value)
        refuse_no_number(value, found)
        return found


def refuse_no_number(value: Any, found: Any) -> None:
    """Raise ValueError for a switch or 010 that was read as a number, alone or in a list."""
    if isinstance(value, list | tuple) and isinstance(found, list | tuple):
        for one, of_it in zip(value, found, strict=False):
            refuse_no_number(one, of_it)
    elif not isinstance(found, bool):
        if isinstance(value, bool):
            raise ValueError(f"expected a number, not {value}")
        numeric = isinstance(found, int | float) and isinstance(value, str)
        if numeric and re.match(r"\s*[-+]?0[\d_]", value):
            raise ValueError(f"expected a number that does not begin with 0, not {value!r}")


def storage_of(config: BaseModel) -> Storage:
    """How data at a URL is read, by a configuration."""
    values = config.model_dump(include={"storage_timeout", "cache", "cache_size"})
    return Storage(values["storage_timeout"], values["cache"], in_bytes(values["cache_size"]))


def merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Two nested dictionaries, the second one's values first."""
    out = dict(base)
    for key, value in top.items():
        below = out.get(key)
        out[key] = (
            merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
        )
    return out


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """The first thing that is wrong, in one sentence that names the key and the fix."""
    first = error.errors()[0]
    key = ".".join(part for part in first["loc"] if isinstance(part, str))
    value, problem = first.get("input"), first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, _keys(model) if model else [], n=1, cutoff=0.5)
        return f"Unknown key {key!r} (value {value!r})." + (
            f" Did you mean {close[0]!r}?" if close else " `--help` lists all settings."
        )
    if not key:
        return problem[0].upper() + problem[1:] + "."
    flag = "--" + key.replace("_", "-")
    if isinstance(value, dict | list | tuple) or first["type"] == "value_error":
        return f"{key} ({flag}): {problem}."
    return f"{key} is {value!r}, but {problem[0].lower()}{problem[1:]}: change it with {flag}."


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys of a model."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _keys(field.annotation, f"{prefix}{name}.")
    return keys


def flat(config: BaseModel) -> dict[str, Any]:
    """A configuration as dotted keys."""
    out: dict[str, Any] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            out |= {f"{name}.{key}": inner for key, inner in flat(value).items()}
        else:
            out[name] = value
    return out


def dotted(given: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        if isinstance(value, dict) and prefix == "":
            out |= dotted(value, f"{key}.")
        else:
            out[prefix + key] = value
    return out


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, where YAML itself would take the last.

    Plain words are as in YAML 1.2, not 1.1: yes and 1:30 and 2024-01-01 are texts, and so is 010.
    """


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        name = str(key.value)
        if name in seen:
            raise yaml.YAMLError(f"line {key.start_mark.line + 1} gives the key {name} again")
        seen.add(name)
    return loader.construct_mapping(node, deep=True)


_Loader.yaml_implicit_resolvers = {}
for _tag, _words, _starts in (
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9]\d*)|0x[\da-fA-F]+", "-+0123456789"),
    # Not 1e-4, which `safe_dump` writes for a text too: where a number is expected it is one.
    ("float", r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]\d+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_words})\Z", re.ASCII), list(_starts)
    )
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds keys and values."""
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not valid YAML: {reason}.") from None
    except RecursionError:
        raise UserError(
            f"{path} is nested too deep: expected keys and values such as `epochs: 100`."
        ) from None
    if is_cut(text):
        raise UserError(
            f"{path} is damaged: its last line, `{LAST_LINE}`, is missing, and settings may be "
            "too. Restore it, or add that line if it is complete."
        )
    if content is None:
        raise UserError(f"{path} is empty: expected keys and values such as `epochs: 100`.")
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, expected keys and values.")
    return content


def write_yaml(settings: dict[str, Any], path: Path) -> None:
    """Settings as a YAML file, usable as a recipe."""
    path.write_text(yaml_text(settings), encoding="utf-8")


def yaml_text(settings: dict[str, Any]) -> str:
    """Settings as YAML, with the lines by which a file that was cut is known."""
    return with_end(yaml.safe_dump(settings, sort_keys=False, width=100))
