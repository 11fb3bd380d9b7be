"""From settings to a method's constructor: its keyword arguments are the settings that it takes."""

from contextlib import suppress
from dataclasses import asdict, fields
from inspect import Parameter, signature
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from lewel.config.pretrain import PretrainConfig
from lewel.config.settings import dotted, flat, refuse_no_number
from lewel.errors import UserError
from lewel.methods.base import Method
from lewel.methods.registry import all_methods, find_method

GROUPS = ("head", "teacher", "contrast")  # settings that many methods share
SMALL_CROPS = ("views.small_crops", "views.small_size", "views.small_scale")
LONGEST_QUEUE = 65_536


def taken(method: type[Method]) -> set[str]:
    """The settings of GROUPS and SMALL_CROPS that a method takes, as dotted keys."""
    hints = hints_of(method)
    shared = {
        f"{group}.{field.name}"
        for group in GROUPS
        if group in hints
        for field in fields(hints[group])
    }
    return shared.union(SMALL_CROPS) if method.about.small_crops else shared


def needs_taking(key: str) -> bool:
    """Whether a setting is one that only some methods take."""
    return key.partition(".")[0] in GROUPS or key in SMALL_CROPS


def hints_of(method: type[Method]) -> dict[str, Any]:
    """The types of a constructor's arguments; groups must be dataclasses."""
    try:
        hints = get_type_hints(method.__init__)
        for group in set(GROUPS) & hints.keys():
            fields(hints[group])
    except (NameError, TypeError) as error:
        raise UserError(
            f"The constructor of {method.about.name} cannot be read ({error}): annotate head, "
            "teacher and contrast with their dataclasses."
        ) from None
    return hints


def constructor_defaults(method: type[Method]) -> dict[str, Any]:
    """The groups of settings as a constructor has them by default."""
    found = {
        name: parameter.default
        for name, parameter in signature(method.__init__).parameters.items()
        if name in GROUPS and parameter.default is not Parameter.empty
    }
    return {name: asdict(spec) for name, spec in found.items()}


def own_options(method: type[Method]) -> dict[str, Parameter]:
    """The settings that only this method has, by name."""
    shared = {"self", "backbone", "images", *GROUPS}
    return {n: p for n, p in signature(method.__init__).parameters.items() if n not in shared}


def arguments(config: PretrainConfig, images: int) -> dict[str, Any]:
    """What the constructor of the chosen method is given, beside the backbone."""
    method = find_method(config.method)
    hints, given = hints_of(method), dict[str, Any]()
    for group in GROUPS:
        if group in hints:
            settings = getattr(config, group)
            names = [field.name for field in fields(hints[group])]
            given[group] = hints[group](**{name: getattr(settings, name) for name in names})
    if "contrast" in given and getattr(given["contrast"], "queue", 0) is None:
        given["contrast"] = type(given["contrast"])(
            **{**vars(given["contrast"]), "queue": max(1, min(LONGEST_QUEUE, images // 4))}
        )
    if "images" in hints:
        given["images"] = images
    return given | typed_options(config).options


def typed_options(config: PretrainConfig) -> PretrainConfig:
    """The same configuration with the method's own settings as the types that it declares."""
    method = find_method(config.method)
    hints_of(method)  # refuses a constructor that cannot be read
    hints = get_type_hints(method.__init__, include_extras=True)  # with bounds
    own = own_options(method).items()
    defaults = {name: p.default for name, p in own if p.default is not Parameter.empty}
    given = {name: _checked(name, v, hints.get(name, Any)) for name, v in config.options.items()}
    options = defaults | given
    return config.model_copy(update={"options": options})


def _checked(name: str, value: Any, kind: Any) -> Any:
    try:
        found = TypeAdapter(kind).validate_python(value)
        refuse_no_number(value, found)
    except ValueError as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise UserError(
            f"--options.{name} is {value!r}, but {problem[0].lower()}{problem[1:]}."
        ) from None
    return found


def refuse_unused(method: type[Method], given: dict[str, Any]) -> None:
    """Raise UserError for settings that the method has no use for, with the methods that have."""
    name = method.about.name
    for key in dotted(given):
        group, _, setting = key.partition(".")
        if needs_taking(key) and key not in taken(method):
            users = methods_with(key)
            raise UserError(
                f"--{key.replace('_', '-')} has no effect with --method {name}: it is a setting of "
                f"{', '.join(users)}."
                if users
                else f"No method has the setting {key}."
            )
        if group == "options" and setting not in own_options(method):
            known = ", ".join(own_options(method)) or "none"
            raise UserError(f"--options.{setting} is no setting of {name}: it has {known}.")


def refuse_unused_in(recipe: dict[str, Any], method: type[Method]) -> None:
    """The same for a recipe, where values that equal the default are no mistake."""
    if "keep_checkpoints" in recipe and "views" in recipe:
        return  # a run's config.yaml: version 0.1 wrote every setting into it
    defaults = flat(PretrainConfig())
    different = {
        group: {key: v for key, v in recipe[group].items() if defaults.get(f"{group}.{key}") != v}
        for group in (*GROUPS, "views")
        if isinstance(recipe.get(group), dict)
    }
    refuse_unused(method, {**different, "options": recipe.get("options") or {}})


def methods_with(key: str) -> list[str]:
    """The names of the methods that take a setting."""
    found = []
    for method in all_methods():
        with suppress(UserError):  # another package's mistake is not this one's
            found += [method.about.name] if key in taken(method) else []
    return found


def without_unused(config: PretrainConfig) -> PretrainConfig:
    """The same configuration, where settings that the method does not take have their defaults."""
    method, fresh = find_method(config.method), PretrainConfig()
    update: dict[str, Any] = {}
    for group in (*GROUPS, "views"):
        settings: BaseModel = getattr(config, group)
        defaults: BaseModel = getattr(fresh, group)
        keys = {key: f"{group}.{key}" for key in type(settings).model_fields}
        unused = [k for k, d in keys.items() if needs_taking(d) and d not in taken(method)]
        values = {key: getattr(defaults, key) for key in unused}
        update[group] = settings.model_copy(update=values)
    options = {k: v for k, v in config.options.items() if k in own_options(method)}
    return config.model_copy(update={**update, "options": options})


def as_recipe(config: PretrainConfig) -> dict[str, Any]:
    """The settings of a run as config.yaml holds them: those that its method takes."""
    method, out = find_method(config.method), config.model_dump(mode="json")
    for group in (*GROUPS, "views"):
        keys = {key: f"{group}.{key}" for key in out[group]}
        kept = [k for k, d in keys.items() if not needs_taking(d) or d in taken(method)]
        out[group] = {key: out[group][key] for key in kept}
    return {key: value for key, value in out.items() if value != {}}
