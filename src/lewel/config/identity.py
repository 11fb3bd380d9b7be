"""What makes two runs the same run, and whether a run follows a recipe."""

from typing import Any

from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import resolve
from lewel.config.settings import flat
from lewel.data.pack.urls import shown

# What may change between a run and its resumption; everything else is the run's identity.
FREE = frozenset(
    {
        "workers",
        "accelerator",
        "accumulate",
        "cudnn_benchmark",
        "devices",
        "nodes",
        "rank_timeout",
        "storage_timeout",
        "cache",
        "cache_size",
        "loggers",
        "log_every",
        "checkpoint_minutes",
        "keep_checkpoints",
        "knn",
    }
)

# Of a run that follows a recipe: they name its data, or do not change what is computed.
TAKEN_FROM_RUN = ("data", "limit", "classes", "seed", "compile", "channels_last")


def differences(old: PretrainConfig, new: PretrainConfig) -> list[str]:
    """What makes two configurations different runs, one `key: old -> new` each.

    More epochs are the same run, trained for longer. So is a URL with another password.
    """
    before, after = ({**flat(one), "data": shown(one.data)} for one in (old, new))
    if new.epochs >= old.epochs:
        after["epochs"] = before["epochs"]
    return [
        f"{key}: {before[key]} -> {after[key]}"
        for key in before
        if before[key] != after[key] and key.split(".")[0] not in FREE
    ]


def disagreements(configs: list[PretrainConfig]) -> list[str]:
    """Settings of one run in which its ranks differ, with their values; paths of data may."""
    rows = [flat(one) for one in configs]
    own = FREE - {"accumulate"} | {"data", "init", "classes"}  # images and weights are compared
    found = []
    for key in rows[0]:
        values = dict.fromkeys(str(row[key]) for row in rows)
        if len(values) > 1 and key.split(".")[0] not in own:
            found.append(f"--{key.replace('_', '-')}: {' and '.join(values)}")
    return found


def follows(
    config: PretrainConfig, recipe: dict[str, Any], overrides: dict[str, Any] | None = None
) -> bool:
    """Whether a run has the settings of a recipe; its data must be compared by other means."""
    own = {key: getattr(config, key) for key in TAKEN_FROM_RUN}
    wanted = resolve({**recipe, **own}, overrides or {})
    if wanted.precision == "auto" and config.precision in ("32", "tf32"):  # what it stands for
        wanted = wanted.model_copy(update={"precision": config.precision})
    if wanted.method != config.method or wanted.epochs != config.epochs:
        return False
    # They need torch, and few runs come this far.
    from lewel.config.methods import as_recipe, typed_options

    own_config = typed_options(resolve(as_recipe(config), {}))  # a run states defaults, too
    return not differences(typed_options(wanted), own_config)
