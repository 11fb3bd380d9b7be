"""Regions of two views that belong together, in colours."""

import pytest
import torch

from lewel.evaluate.links import Links, Regions, links_of, place_colours
from lewel.evaluate.maps import head_maps, maps_of, prototype_maps
from lewel.methods.densecl import DenseCL
from lewel.methods.moco_v2 import MoCoV2
from lewel.methods.pixpro import PixPro
from lewel.methods.resim import ReSim
from lewel.pages.links import draw_links
from tests.methods.making import make_method

SIZES = {"dim": 8, "hidden": 12}
QUEUE = {**SIZES, "queue": 10, "norm_groups": 1}
SIDE = 4


def encoder(kind: type) -> torch.nn.Module:
    return make_method(kind, **(SIZES if kind is PixPro else QUEUE)).student.eval()


def same_crops(batch: int = 2) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    images = torch.randn(batch, 3, 8 * SIDE, 8 * SIDE)
    box = torch.tensor([[0.1, 0.2, 0.5, 0.5]]).expand(batch, -1)
    return [images, images], [box, box], [torch.zeros(batch, dtype=torch.bool)] * 2


@pytest.mark.parametrize("kind", [DenseCL, PixPro, ReSim])
def test_equal_views_have_equal_colours(kind: type) -> None:
    for links in links_of(encoder(kind), *same_crops()):
        assert torch.allclose(links.one.boxes, links.two.boxes, atol=1e-6)
        assert torch.allclose(links.one.colours, links.two.colours)
        assert len(links.one.boxes) == (36 if kind is ReSim else SIDE**2)
        assert links.filled == (kind is not ReSim)


@pytest.mark.parametrize("kind", [PixPro, ReSim])
def test_disjoint_views_are_grey(kind: type) -> None:
    views, boxes, flips = same_crops()
    boxes[1] = boxes[0] + torch.tensor([0.0, 0.5, 0.0, 0.0])
    for links in links_of(encoder(kind), views, boxes, flips):
        assert len(links.one.boxes) == len(links.two.boxes) == 0


def test_a_shifted_view_is_matched_by_features_and_a_flipped_one_by_place() -> None:
    views, boxes, flips = same_crops()
    flips = [flips[0], ~flips[0]]
    for links in links_of(encoder(PixPro), views, boxes, flips):
        colours = links.one.colours.view(SIDE, SIDE, 3)
        assert torch.allclose(links.two.colours.view(SIDE, SIDE, 3), colours.flip(1))


def test_the_distance_of_pairs_is_that_of_the_run() -> None:
    views, boxes, flips = same_crops()
    boxes[1] = boxes[0] + torch.tensor([0.0, 0.5 / SIDE, 0.0, 0.0])  # by one location
    many = [len(links_of(encoder(PixPro), views, boxes, flips, d)[0].one.boxes) for d in (0.7, 0.0)]
    assert many[1] < many[0]


def test_methods_with_pooled_embeddings_link_nothing() -> None:
    assert links_of(encoder(MoCoV2), *same_crops()) is None


def test_colours_are_drawn_where_the_regions_are() -> None:
    grey = torch.full((16, 16, 3), 128, dtype=torch.uint8).numpy()
    red = Regions(torch.tensor([[0.0, 0.0, 0.5, 0.5]]), torch.tensor([[1.0, 0.0, 0.0]]))
    none = Regions(torch.zeros(0, 4), torch.zeros(0, 3))
    for filled in (True, False):
        picture = draw_links(grey, grey, Links(red, none, filled))
        assert picture.shape == (256, 520, 3)
        assert (picture[0, 0] != 128).any()
        assert (picture[200, 200] == 128).all()
        assert (picture[:, -256:] == 128).all()
        assert (picture[50, 50] != 128).any() == filled


def test_colours_of_places_differ() -> None:
    colours = place_colours(4)
    apart = torch.cdist(colours, colours) + torch.eye(16)
    assert apart.min() > 0.05
    assert colours.min() >= 0 and colours.max() <= 1


@pytest.mark.parametrize("kind", [DenseCL, PixPro, ReSim])
def test_the_dense_methods_have_maps_of_their_own_layers(kind: type) -> None:
    own, images = encoder(kind), torch.randn(2, 3, 32, 32)
    maps = maps_of(own, images)
    assert torch.allclose(maps.sum((2, 3)), torch.ones(maps.shape[:2]), atol=1e-5)
    if kind is ReSim:
        assert maps.shape == (2, 256, 8, 8)  # of C4, twice as fine as C5
        return
    features = own.backbone(images)
    scores = torch.nn.functional.normalize(own.head.project_locations(features), dim=-1)
    assert torch.allclose(maps.flatten(2), scores.softmax(1).transpose(1, 2), atol=1e-6)
    assert torch.equal(head_maps(own.head, features), maps.flatten(2))


def test_prototype_maps_show_where_a_prototype_is_the_most_active() -> None:
    scores = torch.zeros(1, 4, 3)
    scores[0, 2, 1] = 1.0  # prototype 1 is active at location 2
    maps = prototype_maps(scores)
    assert maps.shape == (1, 3, 4)
    assert torch.allclose(maps.sum(2), torch.ones(1, 3))
    assert maps[0, 1].argmax() == 2 and maps[0, 0].argmin() == 2
