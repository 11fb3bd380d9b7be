"""The wheel: it holds the package, its recipes and its templates, and works where it is alone."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from lewel.config.recipes import list_recipes
from tests.running import tiny_command

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("lewel-*.whl")
    return built


def test_a_wheel_holds_recipes_and_templates(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"lewel/methods/lewel_b.py", "lewel/py.typed", "lewel/recipes/paper.yaml"} <= names
    for kind in ("pretrain", "eval"):
        assert {f"lewel/recipes/{kind}/{name}.yaml" for name in list_recipes(kind)} <= names
    templates = ROOT / "src" / "lewel" / "pages" / "templates"
    assert {f"lewel/pages/templates/{path.name}" for path in templates.iterdir()} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_an_installed_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """In an empty environment that has the dependencies, and nothing of this checkout."""
    place = tmp_path / "env"
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = (place / "lib").glob("python*/site-packages")
    # A plain path: the link to this checkout that lies there is not followed.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def call(*words: str) -> str:
        done = subprocess.run(
            [str(place / "bin" / "lewel"), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = "import lewel; print(lewel.__file__)"
    where = subprocess.run([str(python), "-c", code], cwd=tmp_path, env=environment, text=True,
                           capture_output=True, check=True)  # fmt: skip
    assert where.stdout.strip().startswith(str(place))
    assert "scenes_demo" in call("recipes")
    assert "resumed" not in call(*tiny_command(tmp_path / "run", "--epochs", "1"))
    assert (tmp_path / "run" / "backbone.safetensors").exists()
