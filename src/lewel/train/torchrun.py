"""What a process of torchrun leaves for torchrun's own report of a failure."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from lewel.files import PARTIAL


def record_failure(message: str) -> None:
    """Give torchrun the message that this process ends with, where torchrun has started it.

    torchrun prints the first one that was recorded as the root cause. Without a record it prints
    a link to its documentation instead.
    """
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if place is None or os.path.exists(place):  # the first message is the cause
        return
    # The form of torch.distributed.elastic's ErrorHandler; `py_callstack` is what is printed.
    about = {"py_callstack": message, "timestamp": str(int(time.time()))}
    content = {"message": {"message": message, "extraInfo": about}}
    temp = Path(f"{place}{PARTIAL}")
    with suppress(OSError):  # a report that cannot be written must not hide the error itself
        temp.write_text(json.dumps(content), encoding="utf-8")
        temp.replace(place)
