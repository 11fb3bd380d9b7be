"""Batches depend only on the seed: not on workers, ranks, or the first step."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lewel.data.sources.files import Files
from lewel.data.sources.images import UnreadableImage
from lewel.data.sources.open import open_data
from lewel.data.sources.scenes import Scenes
from lewel.data.views.crop import ViewRecipe
from lewel.data.views.loader import Batch, Order, TwoViews, finish_views, make_loader
from lewel.data.workers import reader_died
from lewel.train.run import views_of

RECIPES = (ViewRecipe(), ViewRecipe(blur=0.1, solarise=0.2))


def batches(order: Order, first: int, last: int, workers: int = 0) -> list[Batch]:
    dataset = TwoViews(Scenes("train", 24, 20), RECIPES, 16, order.seed)
    return list(make_loader(dataset, order, first, last, workers, pin=False))


def assert_equal(one: Batch, other: Batch) -> None:
    assert torch.equal(one.indices, other.indices)
    for name in ("pixels", "draws", "boxes", "flips"):
        for view, same in zip(getattr(one, name), getattr(other, name), strict=True):
            assert torch.equal(view, same)


def test_an_epoch_has_every_image_at_most_once_and_drops_the_last_partial_batch() -> None:
    order = Order(samples=20, batch_size=6, seed=1)
    assert order.steps_per_epoch == 3
    seen = [index for keys in order.keys(0, 3) for _, index in keys]
    assert len(seen) == len(set(seen)) == 18
    again = [index for keys in order.keys(3, 6) for _, index in keys]
    assert seen != again


def test_workers_and_starting_points_change_nothing() -> None:
    order = Order(samples=20, batch_size=4, seed=3)
    whole = batches(order, 0, 8)
    for one, other in zip(whole, batches(order, 0, 8, workers=2), strict=True):
        assert_equal(one, other)
    for one, other in zip(whole[5:], batches(order, 5, 8), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize(("ranks", "accumulate"), [(2, 1), (1, 2), (2, 2)])
def test_ranks_and_micro_batches_are_slices_of_the_global_batch(
    ranks: int, accumulate: int
) -> None:
    whole = Order(samples=24, batch_size=8, seed=3)
    parts = [list(Order(24, 8, 3, accumulate, rank, ranks).keys(0, 3)) for rank in range(ranks)]
    for step, keys in enumerate(whole.keys(0, 3)):
        together = [
            key
            for rank in range(ranks)
            for micro in range(accumulate)
            for key in parts[rank][step * accumulate + micro]
        ]
        assert together == keys


def test_views_differ_between_epochs_samples_and_views_and_not_otherwise() -> None:
    dataset = TwoViews(Scenes("train", 24, 20), RECIPES, 16, seed=0)
    first = dataset.__getitems__([(0, 5), (1, 5), (0, 6)])
    again = dataset.__getitems__([(0, 6), (0, 5)])
    assert torch.equal(first.pixels[0][0], again.pixels[0][1])
    assert not torch.equal(first.boxes[0][0], first.boxes[0][1])
    assert not torch.equal(first.boxes[0], first.boxes[1])
    other = TwoViews(Scenes("train", 24, 20), RECIPES, 16, seed=1).__getitems__([(0, 5)])
    assert not torch.equal(first.boxes[0][:1], other.boxes[0])


def test_a_batch_records_crop_and_flip() -> None:
    source = Scenes("train", 24, 20)
    batch = TwoViews(source, RECIPES, 16, seed=0).__getitems__([(0, i) for i in range(8)])
    assert batch.flips[0].any()
    for i in range(8):
        top, left, height, width = batch.boxes[0][i].tolist()
        crop = source.read(i)[:, top : top + height, left : left + width]
        view = torch.nn.functional.interpolate(
            crop[None].float(), (16, 16), mode="bilinear", antialias=True
        )[0]
        if batch.flips[0][i]:
            view = view.flip(-1)
        assert (view - batch.pixels[0][i].float()).abs().max() <= 1.01


def test_small_crops_come_from_the_same_read_and_change_no_other_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, keys = Scenes("train", 24, 20), [(0, 5), (3, 6)]
    small = replace(RECIPES[0], crop_scale=(0.05, 0.14), size=8)
    plain = TwoViews(source, RECIPES, 16, seed=0).__getitems__(keys)
    dataset = TwoViews(source, [*RECIPES, small, small], 16, seed=0)
    reads: list[int] = []
    monkeypatch.setattr(
        source, "read", lambda index, real=source.read: reads.append(index) or real(index)
    )
    batch = dataset.__getitems__(keys)
    assert reads == [5, 6]
    assert [pixels.shape for pixels in batch.pixels] == [(2, 3, s, s) for s in (16, 16, 8, 8)]
    assert dataset.sizes == [16, 16, 8, 8] and batch.sizes.tolist() == [[24, 24]] * 2
    for view in range(2):
        assert torch.equal(batch.pixels[view], plain.pixels[view])
        assert torch.equal(batch.draws[view], plain.draws[view])
    assert not torch.equal(batch.boxes[2], batch.boxes[3])
    areas = batch.boxes[2][:, 2:].prod(1) / 24**2
    assert ((areas > 0.03) & (areas < 0.18)).all()
    again = dataset.__getitems__(keys[::-1])  # a pure function of seed, epoch, index and view
    assert torch.equal(again.pixels[3].flip(0), batch.pixels[3])


def test_boxes_reach_a_method_as_fractions_of_the_image() -> None:
    source = Scenes("train", 24, 20)
    batch = TwoViews(source, RECIPES, 16, seed=0).__getitems__([(0, 3), (0, 4)])
    views = views_of(batch, finish_views(batch, torch.device("cpu"), (0,) * 3, (1,) * 3), 20)
    for share, box, flip, drawn in zip(
        views.boxes, batch.boxes, views.flips, batch.flips, strict=True
    ):
        assert torch.allclose(share * 24, box.float()) and torch.equal(flip, drawn)
    assert views.indices.tolist() == [3, 4] and views.total == 20 and len(views) == 2


def test_finished_views_are_normalised_floats() -> None:
    batch = TwoViews(Scenes("train", 24, 20), RECIPES, 16, seed=0).__getitems__([(0, 1), (0, 2)])
    views = finish_views(batch, torch.device("cpu"), (0.5,) * 3, (0.25,) * 3)
    assert [view.shape for view in views] == [(2, 3, 16, 16)] * 2
    assert all(view.min() >= -2 and view.max() <= 2 for view in views)


def test_replacements_are_a_pure_function_of_the_index(tmp_path: Path) -> None:
    for index in range(10):
        pixels = np.full((8, 8, 3), index * 20, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    (tmp_path / "4.png").write_bytes(b"")
    source = open_data(str(tmp_path), image_size=8).unlabelled
    with pytest.raises(UnreadableImage):
        source.read(4)
    dataset = TwoViews(source, RECIPES, 8, seed=0)
    corrupt: list[tuple[int, str, str]] = []
    first = dataset.read(4, corrupt)
    assert torch.equal(first, dataset.read(4, []))
    assert [(index, name) for index, name, _ in corrupt] == [(4, "4.png")]


def test_data_without_any_readable_image_is_all_corrupt(tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / f"{index}.jpg").write_bytes(b"nothing")
    source = open_data(str(tmp_path), image_size=8).unlabelled
    assert isinstance(source, Files)
    batch = TwoViews(source, RECIPES, 8, seed=0).__getitems__([(0, 0)])
    assert {index for index, _, _ in batch.corrupt} == {0, 1, 2}


def test_an_error_in_a_worker_is_not_a_dead_worker() -> None:
    assert reader_died(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."))
    assert not reader_died(RuntimeError("Caught RuntimeError in DataLoader worker process 0."))
    assert not reader_died(RuntimeError("out of memory"))
