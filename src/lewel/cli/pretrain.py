"""`lewel pretrain`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lewel.cli.output import command, say
from lewel.cli.parameters import All, Flag
from lewel.config.pretrain import PretrainConfig
from lewel.progress import plain_console

if TYPE_CHECKING:
    from lewel.tasks.outcome import Pretrained


def pretrain(
    data: str | None = None,
    /,
    *,
    recipe: str | None = None,
    budget: str | None = None,
    out: Path | None = None,
    dry_run: Flag = False,
    rescan: Flag = False,
    config: Annotated[PretrainConfig, All] = PretrainConfig(),  # noqa: B008
) -> None:
    """Pre-train a backbone on unlabelled images; run the same command to resume.

    Parameters
    ----------
    data
        A folder of images, a text file of paths, a CSV with path and label, a data set's name
        (cifar10, stl10, food101, imagenet, ...), `scenes`, or packed data (`lewel pack`), also by
        its URL.
    recipe
        A recipe by name (`lewel recipes`), `paper`, or a YAML file; flags override it. Without one,
        settings are chosen for the images and the machine.
    budget
        Time for all of it, such as 30m, 8h or 2d: decides network and epochs.
    out
        The run folder; by default runs/DATA-METHOD.
    dry_run
        Show the resolved settings, memory and time, and stop.
    rescan
        Read a large folder again, also where the times of its subfolders say that none has changed.
    """
    from lewel.tasks import auto
    from lewel.tasks import pretrain as task

    if rescan:
        task.rescan(data, recipe, out)
    given = config.model_dump(exclude_unset=True)
    found = auto.settings(data, recipe, given, out, budget)
    resolved = found.config
    console = plain_console()
    auto.show_settings(found, console)
    if dry_run:
        show_plan(resolved)
        return
    done = task.pretrain(resolved, out, console)
    say(console, *summary(done, resolved))


def show_plan(config: PretrainConfig) -> None:
    """The settings of a run as YAML, and what it would take."""
    import yaml

    from lewel.config.methods import as_recipe
    from lewel.tasks.dry_run import describe

    print(yaml.safe_dump(as_recipe(config), sort_keys=False).rstrip())
    with plain_console(stderr=True).status("timing a few steps"):
        description = describe(config)
    for name, value in description.items():
        kind = "," if isinstance(value, int) else "g" if isinstance(value, float) else ""
        print(f"{name}: {value:{kind}}")


def summary(done: "Pretrained", config: PretrainConfig) -> list[str]:
    """What was reached, what was written, and what to do next."""
    from lewel.methods.registry import find_method, method_names

    folder = done.folder
    lines = []
    if done.knn is not None:
        before = "" if done.knn_before is None else f"{done.knn_before:.1%} before, "
        lines.append(f"k-NN accuracy {before}{done.knn:.1%} after ({done.steps} steps)")
        if done.warning is not None:
            lines += [done.warning, command("report", folder)]
    corrupt = folder / "corrupt_images.jsonl"
    if corrupt.exists():
        many = len(corrupt.read_text(encoding="utf-8").splitlines())
        lines.append(f"{many} corrupt images: see {corrupt}")
    evaluate = (
        command("knn", folder, "--data", config.data, note="evaluate it")
        if done.knn is not None
        else command("embed", folder, config.data, note="features of every image")
    )
    named = ("heads.safetensors", "card.json", "views.png", "metrics.jsonl")
    others = [name for name in named if (folder / name).exists()]
    again = ("pretrain", "--recipe", folder / "config.yaml")
    lines += [
        f"the weights are in {done.backbone}; beside them are {', '.join(others)}",
        "next:",
        evaluate,
        command(*again, "--out", folder, "--epochs", 2 * config.epochs, note="train for longer"),
    ]
    other = find_method(config.method).about.counterpart
    if other in method_names():
        beside = folder.with_name(f"{folder.name}-{other}")
        note = f"compare with {other}"
        lines.append(command(*again, "--method", other, "--out", beside, note=note))
    python = f"  import lewel; lewel.load_backbone({str(folder)!r})    # Python: a plain network"
    return [*lines, python]
