"""`lewel export --to hub`: a folder for the Hugging Face Hub, with its model card."""

import json
from importlib.metadata import version
from typing import Any

from lewel.errors import RunError, UserError
from lewel.files import mark, write_marked
from lewel.interop.hub import CONFIG, hub_config
from lewel.tasks.export_work import Work
from lewel.tasks.model_card import known_digest, make_card, write_card
from lewel.tasks.outcome import Exported
from lewel.train.run_folder import write_weights


def to_hub(work: Work) -> Exported:
    """Weights, timm's config.json and a model card, loaded by timm and compared."""
    import timm

    path, folder = work.path, work.path.parent
    known = known_digest(folder, work.config.overwrite)
    images = work.images()
    expected = work.net(images)
    made = make_card(work.what, work.network, expected.shape[1], work.config.untrained)
    about = {"version": version("lewel"), "card": made.digest, "writer": mark("export")}
    text = json.dumps(hub_config(work.network, expected.shape[1], about), indent=2) + "\n"
    config, source = folder / CONFIG, f"local-dir:{folder}"
    # First, because a later export knows the folder by it.
    write_marked(config, "export", lambda aside: aside.write_text(text, encoding="utf-8"))
    write_weights(path, work.net, {"writer": mark("export")})
    try:
        net: Any = timm.create_model(source, pretrained=True)
        difference = work.compare([net.eval()(images)], [expected], 1e-5)
    except RunError:
        config.unlink()
        raise
    except (RuntimeError, TypeError):  # of timm
        for file in (path, config):
            file.unlink()
        raise UserError(
            f"{work.what} cannot be exported to hub (timm builds {work.network.name} with other "
            "tensors when it pools): use --to timm."
        ) from None
    files, notes = write_card(made, folder, known)
    loading = ("import timm", f"net = timm.create_model({source!r}, pretrained=True)")
    compared = f"timm's own network gives the features {difference}"
    return Exported((path, config, *files), compared, loading, notes)
