"""The notebook runs from its first cell to its last, in an empty folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "tour.ipynb"

# What Jupyter does, without Jupyter: the last expression of a cell shows itself as HTML.
RUNNER = """
import ast, json, sys

if __name__ == "__main__":
    names = {}
    for number, source in enumerate(json.loads(sys.argv[1])):
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            html = getattr(value, "_repr_html_", None)
            if value is not None:
                print("shown:", html()[:200] if html else repr(value))
"""


def cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_every_cell_is_python() -> None:
    assert len(cells()) >= 8
    for source in cells():
        compile(source, "cell", "exec")


@pytest.mark.slow
def test_it_runs_from_the_first_cell_to_the_last(tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text(RUNNER)
    done = subprocess.run(
        [sys.executable, "runner.py", json.dumps(cells())],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("shown:")]
    assert "k-NN accuracy" in shown[0] and "<table>" in shown[0]
    assert "top-1" in shown[1] and "top-1" in shown[2]
    assert "data:image/png;base64," in shown[3]
    assert "torch.Size([4, 64])" in shown[4]
    assert (tmp_path / "runs" / "photos" / "report.html").exists()
    top1 = [float(line.split("top-1</th><td>")[1].split("%")[0]) for line in shown[1:3]]
    assert top1[0] > top1[1] + 10  # pre-training helps
