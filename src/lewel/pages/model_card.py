"""The model card of a backbone as Markdown, for the hubs of models."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from lewel.pages.overlays import PICTURE_ALT

TAGS = ["timm", "image-feature-extraction", "self-supervised-learning", "lewel"]
COLUMNS = ("task", "data", "method", "result", "95 %", "also", "images")


@dataclass(frozen=True)
class ModelCard:
    """The content of a model card; what is unknown is empty."""

    title: str
    summary: str
    features: int
    image_size: int
    tags: Sequence[str] = ()
    training: dict[str, str] = field(default_factory=dict)
    probe: str = ""  # k-NN accuracy before and after training, as a sentence
    results: Sequence[dict[str, str]] = ()
    picture: str = ""  # file of the alignment maps
    caption: str = ""  # below the picture


def as_markdown(card: ModelCard) -> str:
    """The text of README.md."""
    parts = [header(card), f"# {plain_text(card.title)}", plain_text(card.summary), usage(card)]
    if card.training:
        parts += ["## Training", table(("setting", "value"), list(card.training.items()))]
    parts += ["## Evaluation", *evaluation(card)]
    if card.picture:
        parts += ["## Where it looks", f"![{PICTURE_ALT}]({card.picture})"]
        parts += [plain_text(card.caption)]
    parts += [
        "## Licence",
        "Not chosen yet: fill in `license` at the top of this file. The terms of the training "
        "images may restrict it.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def header(card: ModelCard) -> str:
    """The metadata that hubs read; the licence is for the user to fill in."""
    about = {"library_name": "timm", "pipeline_tag": "image-feature-extraction"}
    text = yaml.safe_dump({**about, "tags": [*TAGS, *card.tags]}, sort_keys=False)
    return f"---\n{text}license:  # fill in, such as apache-2.0\n---"


def usage(card: ModelCard) -> str:
    """Code that loads the folder."""
    return f"""## Use it

```python
import timm
from PIL import Image

net = timm.create_model("local-dir:PATH", pretrained=True).eval()  # or hf-hub:OWNER/NAME
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
image = Image.open("photo.jpg").convert("RGB")
features = net(transform(image).unsqueeze(0))  # (1, {card.features})
```

PATH is this folder. `num_classes=10` adds a classifier to train. Images are RGB; the shorter
side is resized to {round(card.image_size * 8 / 7)} px, and the centre of {card.image_size} px
is cropped."""


def evaluation(card: ModelCard) -> list[str]:
    """The results, with their intervals where there are some."""
    if not card.results:
        return [card.probe or "No evaluation is recorded."]
    used = [name for name in COLUMNS if any(row.get(name) for row in card.results)]
    rows = [[row.get(name, "") for name in used] for row in card.results]
    words = "“95 %” is a bootstrap interval over the validation images." if "95 %" in used else ""
    return [card.probe, table(used, rows), words]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(plain_text, line)) + " |" for line in lines)


def plain_text(words: str) -> str:
    """Text in which no character is markup."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(words.split()))
