"""Checkpoints with the key names that the authors of the nine methods published are imported.

The files are made here: a narrow ResNet under the real names, beside the heads, queues and teachers
that those files hold.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lewel.cli.main import run
from lewel.nn.backbone import build_resnet
from tests.conftest import randomise_statistics

State = dict[str, Tensor]
ROW = torch.ones(8, 64)  # of some head
TRAINING = {"epoch": 200, "arch": "resnet50", "optimizer": {"state": {}, "param_groups": [{}]}}


def network() -> State:
    net = build_resnet("resnet18", width=8)
    randomise_statistics(net)
    return net.state_dict()


def under(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def moco(own: State, other: State, *heads: str) -> dict[str, Any]:
    """MoCo's layout, which PCL and ReSim share."""
    rows = under("module.encoder_k.", other) | under("module.encoder_q.", own)
    rows |= {f"module.encoder_q.{head}": ROW for head in heads}
    rows |= {f"module.encoder_k.{head}": ROW for head in heads}
    return {**TRAINING, "state_dict": {**rows, "module.queue": ROW, "module.queue_ptr": ROW[0, :1]}}


def inst_disc(own: State, other: State) -> dict[str, Any]:
    return {**TRAINING, "state_dict": under("module.", own) | {"module.fc.weight": ROW}}


def simclr(own: State, other: State) -> dict[str, Any]:
    return {"state_dict": own | {"fc.weight": ROW}}


def simclr_of_vissl(own: State, other: State) -> dict[str, Any]:
    trunk = under("_feature_blocks.", own)
    model = {"trunk": trunk, "heads": {"0.clf.0.weight": ROW}}
    return {"phase": 999, "classy_state_dict": {"base_model": {"model": model}, "train": True}}


def swav(own: State, other: State) -> dict[str, Any]:
    heads = {"module.projection_head.0.weight": ROW, "module.prototypes.weight": ROW}
    return under("module.", own) | heads


def simsiam(own: State, other: State) -> dict[str, Any]:
    heads = {"module.encoder.fc.0.weight": ROW, "module.predictor.0.weight": ROW}
    return {**TRAINING, "state_dict": under("module.encoder.", own) | heads}


def barlow_twins(own: State, other: State) -> dict[str, Any]:
    heads = {"module.projector.0.weight": ROW, "module.bn.running_mean": ROW[0]}
    return {"epoch": 1000, "model": under("module.backbone.", own) | heads}


def densecl(own: State, other: State) -> dict[str, Any]:
    rows = under("encoder_q.0.", own) | under("encoder_k.0.", other) | under("backbone.", own)
    heads = {f"encoder_{one}.1.mlp{two}.0.weight": ROW for one in "qk" for two in ("", "2")}
    queues = {"queue": ROW, "queue2": ROW, "queue_ptr": ROW[0, :1], "queue2_ptr": ROW[0, :1]}
    return {"meta": {"epoch": 200, "CLASSES": None}, "state_dict": {**queues, **rows, **heads}}


def densecl_backbone(own: State, other: State) -> dict[str, Any]:
    return {"state_dict": own, "author": "DenseCL"}


def pixpro(own: State, other: State) -> dict[str, Any]:
    rows = under("module.encoder.", own) | under("module.encoder_k.", other)
    heads = {"module.projector.linear1.weight": ROW, "module.value_transform.weight": ROW}
    return {"opt": Namespace(arch="resnet50", crop=0.08), "model": rows | heads, "epoch": 400}


FILES = {
    "InstDisc": inst_disc,
    "PCL v1": lambda own, other: moco(own, other, "fc.weight"),
    "PCL v2": lambda own, other: moco(own, other, "fc.0.weight", "fc.2.weight"),
    "SimCLR": simclr,
    "SimCLR of VISSL": simclr_of_vissl,
    "SwAV": swav,
    "SimSiam": simsiam,
    "Barlow Twins": barlow_twins,
    "Barlow Twins, backbone": lambda own, other: own,
    "DenseCL": densecl,
    "DenseCL, backbone": densecl_backbone,
    "ReSim-C4": lambda own, other: moco(own, other, "fc.0.weight"),
    "ReSim-FPN": lambda own, other: moco(own, other, "fc.0.weight", "fpn_lateral4.weight"),
    "PixPro": pixpro,
}


@pytest.mark.parametrize("method", FILES)
def test_it_is_imported(method: str, tmp_path: Path) -> None:
    own, other, file, out = network(), network(), tmp_path / "theirs.pth.tar", tmp_path / "run"
    torch.save(FILES[method](own, other), file)
    assert run(["import", str(file), "--out", str(out)]) == 0
    found = load_file(out / "backbone.safetensors")
    assert found.keys() == own.keys()
    for name, value in own.items():
        assert torch.equal(found[name], value), name
