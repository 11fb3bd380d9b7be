"""Files that would run code or write elsewhere, wherever a file is read."""

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.data.pack.version_1 import as_version_1
from tests.hostile.case import Case, bring, case
from tests.hostile.checkpoint_cases import weights
from tests.hostile.run_folder_cases import KNN, LONGER, MAPS, NEWEST, REPORT, RESULTS, RUN
from tests.hostile.verdict import OWNED
from tests.hostile.world import EVALUATED, LEWEL, photos


class Evil:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (OWNED, "w")


def _torch_file(place: Path) -> None:
    torch.save({"state_dict": weights("medium"), "more": Evil()}, place / "given.pth")


def _old_torch_file(place: Path) -> None:
    torch.save(
        {"model": weights("medium"), "more": Evil()},
        place / "given.pth",
        _use_new_zipfile_serialization=False,
    )


def _pickle(place: Path) -> None:
    (place / "given.pth").write_bytes(pickle.dumps(Evil()))


def _pkl(place: Path) -> None:
    (place / "given.pkl").write_bytes(pickle.dumps({"model": {}, "more": Evil()}))


def _script(place: Path) -> None:
    module = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    module.save(str(place / "given.pth"))


def in_run(file: str) -> Callable[[Path], None]:
    def prepare(place: Path) -> None:
        path = bring(place, "run") / file
        torch.save({"step": 6, "more": Evil()}, path)

    return prepare


def each_checkpoint(place: Path) -> None:
    for path in (bring(place, "run") / "checkpoints").glob("*.pt"):
        torch.save({"step": 6, "more": Evil()}, path)


def text_in_run(file: str, text: str) -> Callable[[Path], None]:
    return lambda place: (bring(place, "run") / file).write_text(text) and None


def _objects(place: Path) -> None:
    folder = as_version_1(bring(place, "pack"))
    buffer = io.BytesIO()
    np.savez(buffer, **{"train/offsets": np.array([Evil()], dtype=object)})
    (folder / "lewel-samples.npz").write_bytes(buffer.getvalue())


def _parts(place: Path) -> None:
    (place / "new.npz.parts").mkdir()
    np.save(place / "new.npz.parts" / "000000.npy", np.array([Evil()], dtype=object))


def _tar(place: Path) -> None:
    """A shard whose member leads out of the folder."""
    folder = bring(place, "pack")
    with tarfile.open(folder / "train-000000.tar", "w") as tar:
        info = tarfile.TarInfo("../../owned")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"bad"))


def _cifar(place: Path) -> None:
    folder = place / "given" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "data_batch_1").write_bytes(pickle.dumps(Evil()))


def _eps(place: Path) -> None:
    photos(place / "given", 12)
    (place / "given" / "bad.jpg").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(owned) (w) file\n"
    )


YAML_TAG = "seed: !!python/object/apply:builtins.open ['owned', 'w']\n"


def cases() -> list[Case]:
    found = []
    for why, prepare in {
        "a pickle with code in a checkpoint": _torch_file,
        "one of torch's old format": _old_torch_file,
        "a bare pickle": _pickle,
        "a TorchScript archive": _script,
    }.items():
        for line in (
            "import given.pth --out new",
            f"knn given.pth --data {{photos}} --out new {EVALUATED}",
            f"embed given.pth {{plain}} --out new.npz {EVALUATED}",
            "export given.pth --to torch-export --out new.pt2",
            f"pretrain {{plain}} --out new {LEWEL} --init given.pth",
        ):
            found.append(case("refused", line, why, prepare=prepare))
    for line in ("import given.pkl --out new", f"knn given.pkl --data {{photos}} {EVALUATED}"):
        found.append(case("refused", line, "a pickle of detectron2's", prepare=_pkl))
    found += [
        case("runs", RUN, "code in the newest checkpoint", prepare=in_run(NEWEST), says="damaged"),
        case(
            "runs", LONGER, "code in the newest checkpoint", prepare=in_run(NEWEST), says="damaged"
        ),
        case("stops", LONGER, "code in all checkpoints", prepare=each_checkpoint),
        case(
            "refused", KNN, "code in backbone.safetensors", prepare=in_run("backbone.safetensors")
        ),
        case("refused", MAPS, "code in heads.safetensors", prepare=in_run("heads.safetensors")),
        case(
            "warns",
            RUN,
            "a tag in config.yaml",
            prepare=text_in_run("config.yaml", YAML_TAG),
            says=r"config\.yaml",
        ),
        case("refused", MAPS, "a tag in config.yaml", prepare=text_in_run("config.yaml", YAML_TAG)),
        case("clear", REPORT, "a tag in config.yaml", prepare=text_in_run("config.yaml", YAML_TAG)),
        case(
            "stops",
            RESULTS,
            "HTML in a result",
            prepare=text_in_run("results/knn.json", "<script>alert(1)</script>"),
        ),
        *(
            case("refused", line, "objects in the samples of a pack", prepare=_objects)
            for line in (f"pretrain {{pack}} --out new {LEWEL}", "pack --check {pack}")
        ),
        case("stops", "pack --check {pack}", "a member that leads out", prepare=_tar),
        case(
            "stops",
            f"pretrain {{pack}} --out new {LEWEL} --epochs 1",
            "a member that leads out",
            prepare=_tar,
        ),
        case(
            "stops",
            f"embed {{run}} {{plain}} --out new.npz {EVALUATED}",
            "objects in its parts",
            prepare=_parts,
        ),
        case(
            "refused",
            f"pretrain given --out new {LEWEL}",
            "CIFAR's pickles in a folder",
            prepare=_cifar,
        ),
        case(
            "clear",
            f"pretrain given --out new {LEWEL} --epochs 1",
            "PostScript as an image",
            prepare=_eps,
            says="corrupt",
        ),
    ]
    return found
