"""The wheel holds the package, its recipes and its templates."""

import subprocess
import sys
import zipfile
from pathlib import Path

from lewel.recipes import list_recipes

ROOT = Path(__file__).parents[1]


def test_a_wheel_builds_with_the_recipes_inside(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("lewel-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "lewel/methods/lewel_b.py" in names
    assert "lewel/py.typed" in names
    assert {f"lewel/recipes/pretrain/{name}.yaml" for name in list_recipes()} <= set(names)
    templates = ROOT / "src" / "lewel" / "report" / "templates"
    assert {f"lewel/report/templates/{path.name}" for path in templates.iterdir()} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
