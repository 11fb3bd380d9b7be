"""Our detectors against torchvision's, where both can express the same model."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from lewel.losses.detection import mask_loss, mask_targets, roi_losses
from lewel.nn.backbone import ResNetBackbone, Stem, build_resnet
from lewel.transfer.faster_rcnn import Detector, Settings, c4_detector, fpn_detector
from lewel.transfer.fpn import Fpn, resnet_stride
from lewel.transfer.roi import RoIPool
from lewel.transfer.rpn import Anchors
from tests.conftest import randomise_statistics

THEIRS = Settings(rois=24, anchors=32, score=0.0, aligned=False, samples=2, beta=1 / 9)
COUNTS = (200, 60, 200, 60)
KINDS = 3  # classes, without the background
RATIOS = (0.5, 1.0, 2.0)


class Alone(nn.Module):
    """Some module as a backbone of torchvision's detectors."""

    def __init__(self, module: nn.Module, channels: int) -> None:
        super().__init__()
        self.module, self.out_channels = module, channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return OrderedDict(self.module(images))


def scene() -> tuple[Tensor, list[dict[str, Tensor]]]:
    images = torch.randn(2, 3, 64, 64)
    boxes = [[[4.0, 6.0, 40.0, 50.0], [30.0, 2.0, 60.0, 30.0]], [[10.0, 20.0, 34.0, 60.0]]]
    targets = []
    for mine in boxes:
        masks = torch.zeros(len(mine), 64, 64, dtype=torch.uint8)
        for row, (left, top, right, bottom) in zip(masks, mine, strict=True):
            row[int(top) + 3 : int(bottom), int(left) : int(right) - 5] = 1
        labels = torch.arange(len(mine)) % KINDS + 1
        targets.append({"boxes": torch.tensor(mine), "labels": labels, "masks": masks})
    return images, targets


def lively(model: Detector) -> Detector:
    """With random weights and statistics, so that errors show."""
    randomise_statistics(model)
    for layer in (model.regions.box_predictor.cls_score, model.regions.box_predictor.bbox_pred):
        nn.init.normal_(layer.weight, std=0.1)
    nn.init.normal_(model.proposals.head.bbox_pred.weight, std=0.1)
    return model


def of_theirs(
    model: nn.Module, images: Tensor, targets: list[dict[str, Tensor]] | None
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    sizes = [(64, 64)] * len(images)
    maps = model.backbone(images)
    proposals, first = model.rpn(ImageList(images, sizes), maps, targets)
    found, second = model.roi_heads(maps, proposals, sizes, targets)
    return found, {**first, **second}


def compare(ours: Detector, theirs: nn.Module, masks: bool) -> None:
    """Compare every loss, and the detections with a score threshold of 0."""
    images, targets = scene()
    ours.train(), theirs.train()
    torch.manual_seed(5)
    step = ours(images, [(64, 64)] * 2, targets)
    torch.manual_seed(5)
    _, losses = of_theirs(theirs, images, targets)
    assert sorted(step.logs) == sorted(losses)
    assert len(losses) == 5 if masks else 4
    for name, value in losses.items():
        assert value > 0, name
        torch.testing.assert_close(step.logs[name], value.detach(), msg=name)
    torch.testing.assert_close(step.loss, sum(losses.values()))

    ours.eval(), theirs.eval()
    with torch.no_grad():
        mine, (other, _) = ours.detect(images, [(64, 64)] * 2), of_theirs(theirs, images, None)
    for one, two in zip(mine, other, strict=True):
        assert len(one["boxes"]) >= 20
        assert torch.equal(one["labels"], two["labels"])
        torch.testing.assert_close(one["scores"], two["scores"])
        torch.testing.assert_close(one["boxes"], two["boxes"])
        if masks:
            torch.testing.assert_close(one["masks"], two["masks"][:, 0])


def options() -> dict[str, object]:
    before, after, before_test, after_test = COUNTS
    return {
        "rpn_pre_nms_top_n_train": before,
        "rpn_post_nms_top_n_train": after,
        "rpn_pre_nms_top_n_test": before_test,
        "rpn_post_nms_top_n_test": after_test,
        "rpn_batch_size_per_image": THEIRS.anchors,
        "box_batch_size_per_image": THEIRS.rois,
        "box_score_thresh": 0.0,
    }


@pytest.mark.parametrize("stem", ["imagenet", "medium", "small"])
def test_c4_equals_torchvisions_detector_with_layer4_as_its_head(stem: Stem) -> None:
    net = build_resnet("resnet10", stem=stem, width=8)
    stride = 4 * resnet_stride(net)
    assert stride == {"imagenet": 16, "medium": 8, "small": 4}[stem]
    settings = Settings(**{**THEIRS.__dict__, "proposals": COUNTS})
    ours = lively(c4_detector(ResNetBackbone(net), KINDS, False, 8, settings))
    head = copy.deepcopy(ours.regions.box_head)
    sizes = (tuple(2 * stride * 2**n for n in range(5)),)
    theirs = FasterRCNN(
        Alone(copy.deepcopy(ours.body), ours.body.channels),
        rpn_anchor_generator=AnchorGenerator(sizes, (RATIOS,)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 14, 2),
        box_head=nn.Sequential(head, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        box_predictor=FastRCNNPredictor(64, 1 + KINDS),
        **options(),
    )
    theirs.rpn.head.load_state_dict(ours.proposals.head.state_dict())
    predictor = ours.regions.box_predictor
    theirs.roi_heads.box_predictor.load_state_dict(predictor.state_dict())
    compare(ours, theirs, masks=False)


def test_fpn_with_masks_equals_torchvisions() -> None:
    net = build_resnet("resnet10", width=8)
    twin = copy.deepcopy(net)
    settings = Settings(**{**THEIRS.__dict__, "proposals": COUNTS})
    ours = fpn_detector(ResNetBackbone(net), KINDS, True, 16, 24, settings)
    for source, target in zip(net.buffers(), twin.buffers(), strict=True):
        assert source.shape == target.shape
    lively(ours)
    twin.load_state_dict(net.state_dict())
    body = BackboneWithFPN(
        twin,
        {f"layer{n}": str(n - 1) for n in (1, 2, 3, 4)},
        [8, 16, 32, 64],
        16,
        extra_blocks=LastLevelMaxPool(),
    )
    theirs = MaskRCNN(
        body,
        rpn_anchor_generator=AnchorGenerator(
            tuple((8 * s,) for s in (4, 8, 16, 32, 64)), (RATIOS,) * 5
        ),
        box_roi_pool=MultiScaleRoIAlign(["0", "1", "2", "3"], 7, 2),
        box_head=TwoMLPHead(16 * 49, 24),
        box_predictor=FastRCNNPredictor(24, 1 + KINDS),
        mask_head=MaskRCNNHeads(16, (16,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(16, 16, 1 + KINDS),
        **options(),
    )
    heads = theirs.roi_heads
    for source, target in (
        (ours.body.pyramid, body.fpn),
        (ours.proposals.head, theirs.rpn.head),
        (ours.regions.box_head, heads.box_head),
        (ours.regions.box_predictor, heads.box_predictor),
    ):
        target.load_state_dict(source.state_dict())
    nn.init.normal_(ours.regions.masks.layers[-1].weight, std=0.1)
    copies = [*heads.mask_head.parameters(), *heads.mask_predictor.parameters()]
    with torch.no_grad():
        for source, target in zip(ours.regions.masks.parameters(), copies, strict=True):
            target.copy_(source)
    compare(ours, theirs, masks=True)


def test_anchors_by_hand() -> None:
    anchors = Anchors([[8]], [4])
    images = ImageList(torch.zeros(1, 3, 8, 12), [(8, 12)])
    (found,) = anchors(images, [torch.zeros(1, 2, 2, 3)])
    cell = torch.tensor([[-6.0, -3, 6, 3], [-4, -4, 4, 4], [-3, -6, 3, 6]])
    assert found.shape == (2 * 3 * 3, 4)
    assert torch.equal(found[:3], cell)
    assert torch.equal(found[-3:], cell + torch.tensor([8.0, 4, 8, 4]))


def test_anchors_keep_their_stride_where_a_map_is_rounded_up() -> None:
    anchors = Anchors([[8], [16]], [32, 64])
    images = ImageList(torch.zeros(1, 3, 96, 96), [(96, 96)])
    (found,) = anchors(images, [torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 2, 2)])
    centres = (found[-3:, :2] + found[-3:, 2:]) / 2
    assert torch.equal(centres, torch.full((3, 2), 64.0))


def test_aligned_pooling_by_hand() -> None:
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)  # each location's value is its column
    box = [torch.tensor([[4.0, 4.0, 12.0, 12.0]])]  # columns 1 to 3, edge to edge
    for aligned, expected in ((True, [1.0, 2.0]), (False, [1.5, 2.5])):
        pooled = RoIPool(2, [4], aligned=aligned, samples=1)({"0": ramp}, box)
        assert torch.allclose(pooled[0, 0], torch.tensor([expected, expected]))


def test_rois_are_assigned_to_the_level_of_their_size() -> None:
    maps = {str(n): torch.full((2, 1, 64 // 2**n, 64 // 2**n), float(n)) for n in range(5)}
    boxes = [
        torch.tensor([[0.0, 0, 250, 250], [0, 0, 20, 20]]),
        torch.tensor([[0.0, 0, 120, 120], [0, 0, 224, 224]]),
    ]
    pooled = RoIPool(1, [4, 8, 16, 32], aligned=True, samples=0)(maps, boxes)
    # 224 px is the size of stride 16 (level 2), half of it of stride 8, below 112 of stride 4.
    assert pooled.flatten().tolist() == [2.0, 0.0, 1.0, 2.0]


def test_roi_losses_by_hand() -> None:
    scores = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    deltas = torch.tensor([[9.0, 9, 9, 9, 1, 2, 0, 0], [9.0, 9, 9, 9, 9, 9, 9, 9]])
    labels, targets = torch.tensor([1, 0]), torch.tensor([[0.0, 0, 0.05, 0], [5.0, 5, 5, 5]])
    kind, plain = roi_losses(scores, deltas, labels, targets, 0.0)
    assert kind.item() == pytest.approx(0.693147, abs=1e-6)
    assert plain.item() == pytest.approx((1 + 2 + 0.05) / 2)
    _, smooth = roi_losses(scores, deltas, labels, targets, 1 / 9)
    assert smooth.item() == pytest.approx((1 - 1 / 18 + 2 - 1 / 18 + 0.05**2 * 4.5) / 2)


def test_mask_losses_by_hand() -> None:
    mask = torch.zeros(1, 8, 8)
    mask[0, :, 4:] = 1
    box, which = torch.tensor([[2.0, 2.0, 6.0, 6.0]]), torch.tensor([0])
    target = mask_targets(mask, box, which, 2, aligned=True)
    assert target.tolist() == [[[0.0, 1.0], [0.0, 1.0]]]
    logits = torch.zeros(1, 3, 2, 2)
    logits[0, 2] = torch.tensor([[-100.0, 100.0], [-100.0, 0.0]])
    loss = mask_loss(logits, torch.tensor([2]), target)
    assert loss.item() == pytest.approx(0.693147 / 4, abs=1e-6)
    nothing = mask_loss(torch.zeros(0, 3, 2, 2), torch.zeros(0).long(), torch.zeros(0, 2, 2))
    assert nothing == 0


def test_proposal_losses_by_hand() -> None:
    settings = Settings(proposals=COUNTS, anchors=4)
    model = c4_detector(
        ResNetBackbone(build_resnet("resnet10", stem="small", width=8)), 1, False, 8, settings
    )
    deltas = torch.tensor([[1.0, 0, 0, 0], [7.0, 7, 7, 7]])
    objects, boxes = model.proposals.compute_loss(
        torch.zeros(2, 1), deltas, [torch.tensor([1.0, 0.0])], [torch.zeros(2, 4)]
    )
    assert objects.item() == pytest.approx(0.693147, abs=1e-6)
    assert boxes.item() == pytest.approx(1 / 2)


def test_the_extra_norm_has_no_relu_and_all_norms_are_trained() -> None:
    model = c4_detector(
        ResNetBackbone(build_resnet("resnet10", stem="small", width=8)), 2, True, 8, Settings()
    ).train()
    _, norm = model.regions.box_head
    out = model.regions.box_head(torch.randn(4, 32, 14, 14))
    assert isinstance(norm, nn.BatchNorm2d) and out.min() < 0 and out.shape == (4, 64, 7, 7)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 1 + 4 * 2 + 3 + 1
    assert all(m.training and m.weight.requires_grad and m.track_running_stats for m in norms)


def test_strides_depend_on_the_stem() -> None:
    for stem, first in (("imagenet", 4), ("medium", 2), ("small", 1)):
        body = Fpn(ResNetBackbone(build_resnet("resnet10", stem=stem, width=8)), 16).eval()
        assert body.strides == tuple(first * 2**n for n in range(5))
        with torch.no_grad():
            maps = body(torch.zeros(1, 3, 128, 128))
        sides = [one.shape[-1] for one in maps.values()]
        assert sides == [128 // stride for stride in body.strides]
