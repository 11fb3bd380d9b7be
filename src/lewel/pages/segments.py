"""Pictures of segmentations: an image, its ground-truth mask and the predicted one."""

import numpy as np
from PIL import Image
from torch import Tensor

from lewel.data.dense.voc import palette

GAP = 8  # white pixels between the pictures


def side_by_side(image: Tensor, *masks: Tensor) -> Image.Image:
    """An image uint8 (3, H, W), then masks (H, W) in VOC's colours."""
    colours = palette()
    shown = [image.permute(1, 2, 0).numpy(), *(colours[mask.numpy()] for mask in masks)]
    gap = np.full((image.shape[1], GAP, 3), 255, np.uint8)
    parts = [part for picture in shown for part in (picture, gap)][:-1]
    return Image.fromarray(np.concatenate(parts, axis=1))
