"""A run's network with its head, as `lewel maps` and `lewel where` use it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lewel.config.build import build_method, build_two_views
from lewel.config.pretrain import PretrainConfig
from lewel.config.resolve import read_config
from lewel.data.sources.source import Source
from lewel.data.views.augment import normalise
from lewel.data.views.loader import TwoViews
from lewel.errors import UserError, state_of
from lewel.evaluate.maps import map_note, maps_and_features, readable_size
from lewel.files import user_path
from lewel.interop.lookup import read_card
from lewel.interop.weights import fill, read_weights
from lewel.nn.backbone import MEAN, STD
from lewel.nn.heads import Encoder
from lewel.train.run_folder import RunFolder

BATCH = 32  # images at a time
OF_A_RUN = ("method", "data", "images", "steps", "knn")  # the same in all its files


@dataclass(frozen=True)
class MapModel:
    """A run's network in eval mode, with its augmentation."""

    config: PretrainConfig
    encoder: Encoder
    device: torch.device
    trained_size: int  # of the images; config has the size that they are shown at

    @property
    def note(self) -> str | None:
        """A note on maps that are not the paper's coupled maps."""
        return map_note(self.encoder.head, self.config.method)

    def maps(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, S, S) of 0 to 1 -> maps (B, K, h, w), on the CPU."""
        return self.maps_and_features(images)[0]

    def maps_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures (B, 3, S, S) of 0 to 1 -> maps (B, K, h, w), features (B, N, C), on the CPU."""
        parts = torch.split(normalise(images, MEAN, STD), BATCH)
        found = [maps_and_features(self.encoder, part.to(self.device)) for part in parts]
        maps, features = (torch.cat([pair[at].cpu() for pair in found]) for at in range(2))
        if not maps.isfinite().all():
            raise UserError(
                "The maps of this run are not finite: its weights are damaged or too large."
            )
        return maps, features

    def readable(self) -> "MapModel":
        """The same network for images that are large enough for readable maps."""
        size = readable_size(self.encoder.backbone, self.config.image_size)
        return replace(self, config=self.config.model_copy(update={"image_size": size}))

    def views(self, source: Source, seed: int) -> TwoViews:
        """A source in the views of the run's recipe, drawn by a seed."""
        return build_two_views(self.config.model_copy(update={"seed": seed}), source)


def refuse_mixed(folder: RunFolder) -> None:
    """Raise UserError for a backbone and a head that different runs have written."""
    cards = read_card(folder.backbone), read_card(folder.heads)
    for key in OF_A_RUN if all(cards) else ():
        one, other = (card.get(key) for card in cards)
        if one != other:
            raise UserError(
                f"{folder.backbone} and {folder.heads.name} are of different runs ({key} is {one} "
                f"and {other}): restore one of them."
            )
    one, other = (card.get("of_backbone") for card in cards)  # older versions have none
    if one and other and one != other:
        raise UserError(
            f"{folder.backbone} and {folder.heads.name} were not trained together: restore one of "
            "them."
        )


def open_map_model(
    run: Path,
    *,
    image_size: int | None = None,
    untrained: bool = False,
    device: torch.device | None = None,
) -> MapModel:
    """The network of a run folder with its head; randomly initialised if `untrained`."""
    folder = RunFolder(user_path(run))
    if not folder.path.is_dir():
        raise UserError(f"{run} {state_of(folder.path)}: expected a run folder.")
    for file in (folder.config, folder.backbone, folder.heads):
        if not file.is_file():
            raise UserError(
                f"{run} has no {file.name}: maps need a network with its head, so give the folder "
                "of a run that `lewel pretrain` wrote."
            )
    if not untrained:
        refuse_mixed(folder)
    config = read_config(folder.config)
    trained_size = config.image_size
    # The queue and ShuffleBN groups are for training only.
    contrast = config.contrast.model_copy(update={"queue": 1, "norm_groups": 1})
    config = config.model_copy(
        update={"contrast": contrast, "image_size": image_size or config.image_size}
    )
    encoder: Encoder = build_method(config, images=1).student
    if not untrained:
        fill(encoder.backbone.net, read_weights(folder.backbone), str(folder.backbone))
        fill(encoder.head, read_weights(folder.heads), str(folder.heads))
    device = device or torch.device("cpu")
    return MapModel(config, encoder.eval().to(device), device, trained_size)
