"""Storage fails on several ranks: all of them save and stop at one step, and resume."""

import re
from pathlib import Path

import pytest

from tests.data.pack.photos import make_packed
from tests.faults.storage import Faults, served
from tests.faults.test_resume import assert_same_run
from tests.running import start_process

FLAGS = ("--limit", "400", "--epochs", "1", "--batch-size", "16", "--optim.lr-batch-size", "16")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_packed(tmp_path_factory.mktemp("storage"), train=400, val=6, shard_images=100)


@pytest.mark.slow
def test_all_ranks_save_and_stop_at_one_step(packed: Path, tmp_path: Path) -> None:
    faults, out = Faults(down_after=14, down_for=1e6), tmp_path / "run"
    flags = (*FLAGS, "--devices", "2")
    with served(packed, faults) as url:
        process = start_process(out, *flags, "--storage-timeout", "0.03", data=url)
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 1 and "Traceback" not in said, said
        saved = re.search(r"saved up to step (\d+): run the same command to resume", said)
        assert saved is not None and 0 < int(saved[1]) < 25, said
        faults.down_until = 0.0
        again = start_process(out, *flags, data=url)
        said, _ = again.communicate(timeout=200)
        assert again.returncode == 0 and f"resumed at step {saved[1]}" in said, said
        whole = start_process(tmp_path / "whole", *flags, data=str(packed))
        assert whole.wait(200) == 0
    assert_same_run(tmp_path / "whole", out)
