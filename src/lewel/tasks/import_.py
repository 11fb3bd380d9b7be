"""`lewel import`: a third-party checkpoint as a folder that every command takes."""

import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lewel.config.commands import ImportConfig
from lewel.data.views.transform import preprocessing
from lewel.errors import UserError, state_of
from lewel.evaluate.results import fingerprint
from lewel.files import mark, refuse_foreign, write_atomically
from lewel.interop.backbones import Network, check_features, find_network
from lewel.interop.lookup import read_card
from lewel.interop.weights import fill, read_weights
from lewel.nn.backbone import exports_of
from lewel.train.run_folder import RunFolder, write_weights


class Imported(NamedTuple):
    """The folder and the network of an imported backbone."""

    folder: Path
    network: Network
    tensors: int
    initialised: list[str]  # tensors that the file did not have


def import_(file: Path, config: ImportConfig, out: Path | None = None) -> Imported:
    """Write backbone.safetensors and card.json from a checkpoint; no code in it is run."""
    if not file.is_file():
        raise UserError(
            f"{file} {state_of(file)}: expected a checkpoint (.pth, .pt, .safetensors)."
        )
    if file.suffix == ".safetensors" and "backbone" in read_card(file):
        raise UserError(f"{file} was written by lewel: use it directly, without importing.")
    folder = RunFolder(out or Path("runs") / file.name.split(".")[0])
    known = folder.backbone.exists() and not config.overwrite
    if folder.path.is_file() or folder.config.exists() or known:
        raise UserError(
            f"--out {folder.path} already exists: choose a new folder"
            f"{', or replace its backbone with --overwrite' if known else ''}."
        )
    refuse_foreign(folder.card, "import", config.overwrite)
    tensors = read_weights(file)
    network = find_network(file, config.backbone, config.image_size)
    if config.stem is not None:
        network = network._replace(stem=config.stem)
    built = network.build()
    initialised = fill(built.net, tensors, str(file), config.partial)
    check_features(built.eval(), network, file)
    card: dict[str, Any] = {
        "method": "imported",
        "writer": mark("import"),
        "backbone": network.name,
        "stem": network.stem,
        "width": network.width,
        "channels": built.channels,
        "exports": exports_of(network.name, network.stem, network.width),  # type: ignore[arg-type]
        "image_size": network.image_size,
        "mean": network.mean,
        "std": network.std,
        "preprocessing": preprocessing(network.image_size),
        "source": {"file": file.name, "sha256": fingerprint(file), "fresh": initialised},
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "lewel": version("lewel"),
        "torch": torch.__version__,
    }
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder.path} cannot be written: {error.strerror}.") from None
    write_weights(folder.backbone, built.net, {"lewel": json.dumps(card)})
    text = json.dumps(card, indent=2) + "\n"
    write_atomically(folder.card, lambda aside: aside.write_text(text, encoding="utf-8"))
    return Imported(folder.path, network, len(built.net.state_dict()), initialised)
