"""Times of `lewel watch` and `lewel report` on a long metrics.jsonl.

`python -m tests.tasks.measure_watch 500000` writes so many lines into a temporary folder.
"""

import json
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from lewel.tasks.report import report
from lewel.tasks.watch import LivePage, Server
from tests.pages.making import metric_lines

CONFIG = "data: scenes\nmethod: lewel_b\nbackbone: resnet10\nepochs: 4\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.yaml").write_text(CONFIG)
        with (folder / "metrics.jsonl").open("w") as file:
            for line in metric_lines(int(sys.argv[1]) - 1):
                file.write(json.dumps(line) + "\n")
        print(f"{(folder / 'metrics.jsonl').stat().st_size / 1e6:.0f} MB")
        for name in ("without a summary", "with one"):
            with Server(LivePage(folder, 1)) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                times, began, page = list[float](), time.monotonic(), b"is being read"
                while b"is being read" in page:
                    start = time.monotonic()
                    page = urllib.request.urlopen(server.url).read()
                    times.append(time.monotonic() - start)
                    time.sleep(0.2)
                whole = time.monotonic() - began
                print(
                    f"{name}: first page {times[0]:.2f} s, slowest {max(times):.2f} s, "
                    f"with all curves after {whole:.1f} s"
                )
                server.shutdown()
            if name == "without a summary":
                (folder / ".metrics_summary.npz").rename(folder / "summary")
                began = time.monotonic()
                report([folder], out=folder / "r.html", galleries=lambda run: None)
                print(f"report without a summary: {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        report([folder], out=folder / "r2.html", galleries=lambda run: None)
        print(f"report with one: {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
