"""The line that shows the progress of a training."""

from io import StringIO

import pytest
from rich.console import Console

from lewel.train.display import Display

LINE = {"loss": 1.0, "lr": 0.1, "images_per_s": 5.0, "data_wait": 0.1}


@pytest.mark.parametrize(
    ("steps", "of", "shown"),
    [(150, 11, "epoch 13.64/13.64"), (150, 50, "epoch 3.00/3"), (4, 11, "epoch 0.36/0.36")],
)
def test_the_last_epoch_is_never_exceeded(steps: int, of: int, shown: str) -> None:
    out = StringIO()
    display = Display(steps, 0, of, Console(file=out, width=200))
    display.begin()
    display.show({"step": steps, **LINE})
    assert shown in out.getvalue()
