"""How packing scales with processes: `python -m tests.data.pack.measure_ranks 1600`.

So many made-up photographs of 640 x 480 are packed by one process and by two, each without data
workers. CPU time is that of packing, without imports; the bytes of the shards are compared.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from lewel.cli.main import run
from lewel.data.pack.write import Packing
from lewel.ops.ranks import rank

SHARDS = 8


def make(folder: Path, count: int) -> None:
    """Photographs with the noise of real ones."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(count):
        rough = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        smooth = np.array(rough.resize((640, 480), Image.Resampling.BICUBIC), np.int16)
        noisy = smooth + draw.integers(-6, 7, smooth.shape)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:05}.jpg")


def timed(words: list[str]) -> int:
    """Pack in this process, and print how long it took."""
    write = Packing.write_shards

    def timing(self: Packing, workers: int) -> None:
        wall, cpu = time.monotonic(), time.process_time()
        write(self, workers)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        print(f"rank {rank()}: {self.seen:,} images, {wall:.1f} s, {cpu:.1f} s of CPU time")

    Packing.write_shards = timing  # type: ignore[method-assign]
    return run(words)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, count = Path(place), int(sys.argv[1])
        make(folder / "photos", count)
        shards: list[list[bytes]] = []
        for processes in (1, 2):
            out = folder / str(processes)
            words = ["pack", str(folder / "photos"), str(out), "--workers", "0"]
            words += ["--shard-images", str(count // SHARDS)]
            launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] * (processes > 1)
            command = [sys.executable, *launch, "-m", "tests.data.pack.measure_ranks", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{processes} processes, load {os.getloadavg()[0]:.0f}")
            print("\n".join(line for line in done.stdout.splitlines() if line.startswith("rank")))
            shards.append([path.read_bytes() for path in sorted(out.glob("*.tar"))])
        print("the bytes are", "equal" if shards[0] == shards[1] else "NOT equal")


if __name__ == "__main__":
    sys.exit(timed(sys.argv[1:]) if sys.argv[1] == "pack" else main())
