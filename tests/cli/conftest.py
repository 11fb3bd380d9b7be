"""A tiny run with labelled data and masks beside it."""

from pathlib import Path

import pytest

from tests.cli.making import images, masks
from tests.running import tiny_run


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inputs") / "run"
    images(out.parent / "data", {"a": 20, "b": 20})
    masks(out.parent / "masks", [0, 1, 1, 0, 1, 0, 1, 0])
    assert tiny_run(out, "--epochs", "1", data=str(out.parent / "data")) == 0
    return out
