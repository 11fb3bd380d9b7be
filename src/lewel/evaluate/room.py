"""Room for features: on the device, else in main memory, else in a file that is mapped."""

import math
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lewel.errors import RunError
from lewel.host import host_memory

USABLE = 0.8  # fraction of the free memory: k-NN and linear probe take 1.2 times the features


class Room:
    """Makes tensors where they fit; the file is in a folder, and gone with the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.elsewhere = False  # whether one did not fit the device

    def make(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised float32 tensor, on the device of another where it fits."""
        size = 4 * math.prod(shape)
        if size <= USABLE * free_bytes(like.device):
            return like.new_empty(shape)
        self.elsewhere = True
        if like.device.type != "cpu" and size <= USABLE * free_bytes(torch.device("cpu")):
            return torch.empty(shape)
        return self.mapped(shape, size)

    def mapped(self, shape: tuple[int, ...], size: int) -> Tensor:
        """A tensor in a file without a name."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk shows here, not later
                return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))
        except OSError as error:
            raise RunError(
                f"The features need {size / 1e9:.1f} GB, more than is free in memory and in "
                f"{self.folder} ({(error.strerror or str(error)).lower()}): make room, choose "
                "another --out, or use --limit."
            ) from None


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; of the CPU what programs can have without swapping."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return host_memory()[1]
