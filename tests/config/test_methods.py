"""A method's constructor decides which settings it takes; the others are refused."""

from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

from lewel.config import methods
from lewel.config.configure import configure
from lewel.config.identity import differences
from lewel.config.methods import arguments, as_recipe, own_options, taken, typed_options
from lewel.config.pretrain import PretrainConfig
from lewel.config.recipes import list_recipes, read_recipe
from lewel.config.resolve import resolve
from lewel.errors import UserError
from lewel.methods.byol import BYOL
from lewel.methods.lewel_m import LewelM
from lewel.methods.registry import find_method, method_names
from lewel.nn.backbone import Backbone


class Own(BYOL):
    """BYOL with a setting of its own."""

    def __init__(
        self, backbone: Backbone, *, images: int, scale: Annotated[float, "Of the loss."] = 1.0
    ) -> None:
        super().__init__(backbone)


def test_what_a_method_takes_is_what_its_constructor_takes() -> None:
    assert taken(BYOL) == {
        *("head.dim", "head.hidden", "head.norm"),
        *("teacher.statistics", "teacher.momentum", "teacher.schedule"),
    }
    assert {"head.maps", "head.groups", "contrast.queue"} <= taken(LewelM)
    assert own_options(BYOL) == {} and list(own_options(Own)) == ["scale"]


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("byol", {"contrast": {"queue": 10}}, "--contrast.queue has no effect with --method byol"),
        ("byol", {"contrast": {"queue": 10}}, r"it is a setting of (\w+, )*lewel_m, moco_v2"),
        ("byol", {"head": {"aligned_dim": 8}}, "it is a setting of lewel_b, lewel_barlow, lewel_m"),
        ("lewel_b", {"contrast": {"temperature": 0.1}}, "--contrast.temperature has no effect"),
        (
            "moco_v2",
            {"head": {"maps": "random"}},
            "--head.maps has no effect with",
        ),
        ("simclr", {"contrast": {"queue": 10}}, "--contrast.queue has no effect"),
        ("byol", {"views": {"small_size": 9}}, "--views.small-size has no effect with"),
        ("byol", {"views": {"small_scale": (0.1, 0.2)}}, "it is a setting of lewel_swav, swav"),
        ("swav", {"options": {"prototypes": 0}}, "--options.prototypes is 0, but input should be"),
        ("swav", {"options": {"epsilon": 0}}, "--options.epsilon is 0, but input should be"),
        ("byol", {"options": {"scale": 2}}, "--options.scale is no setting of byol: it has none"),
    ],
)
def test_a_setting_of_another_method_is_refused(
    method: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        configure("scenes", None, {"method": method, **given})


def test_a_recipe_with_a_setting_of_another_method_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump({"method": "byol", "contrast": {"queue": 10}}))
    with pytest.raises(UserError, match=r"--contrast\.queue has no effect"):
        configure("scenes", str(recipe), {})
    # A default value is no mistake: version 0.1 wrote all of them into config.yaml.
    recipe.write_text(yaml.safe_dump({"method": "byol", "contrast": {"temperature": 0.2}}))
    assert configure("scenes", str(recipe), {}).method == "byol"


def test_a_recipe_for_one_method_trains_its_counterpart(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump({"method": "lewel_b", "head": {"dim": 64, "groups": 8}}))
    config = configure("scenes", str(recipe), {"method": "byol"})
    assert (config.head.dim, config.head.groups) == (64, PretrainConfig().head.groups)
    assert as_recipe(config)["head"] == {"dim": 64, "hidden": 4096, "norm": "batch"}
    assert "contrast" not in as_recipe(config)


def test_a_config_of_version_0_1_with_unused_settings_is_a_recipe(tmp_path: Path) -> None:
    """It wrote every setting, with its own defaults, for every method."""
    config = resolve({"method": "byol", "head": {"aligned_dim": 256, "dim": 64}}, {})
    old = config.model_dump(mode="json")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
    again = configure("scenes", str(tmp_path / "config.yaml"), {"epochs": 200})
    assert (again.method, again.head.dim, again.epochs) == ("byol", 64, 200)


def test_a_recipe_with_an_unknown_option_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"method": "byol", "options": {"typo": 3}}))
    with pytest.raises(UserError, match=r"--options\.typo is no setting of byol"):
        configure("scenes", str(tmp_path / "mine.yaml"), {})


def test_c_follows_d_unless_given() -> None:
    assert configure("scenes", None, {"head": {"dim": 128}}).head.aligned_dim == 128
    recipe = "imagenet100_lewel_m_240ep"
    assert configure("scenes", recipe, {"head": {"dim": 512}}).head.aligned_dim == 512
    assert configure("scenes", recipe, {}).head.aligned_dim == 128
    assert resolve({}, {"head": {"dim": 64}}).head.aligned_dim == 64
    assert resolve({}, {"head": {"dim": 64, "aligned_dim": 32}}).head.aligned_dim == 32


@pytest.mark.parametrize("name", method_names())
def test_the_paper_recipe_of_every_method_is_its_authors(name: str) -> None:
    shipped = [f"imagenet_{name}_{epochs}ep" for epochs in (100, 200)]
    recipe = next(one for one in shipped if one in list_recipes())
    config = configure("scenes", "paper", {"method": name})
    wanted = configure("scenes", recipe, {"precision": "auto"})
    assert differences(wanted, config) == []
    if "contrast.queue" in taken(find_method(name)) and name != "pcl":  # it states its own
        assert arguments(config, images=1000)["contrast"].queue == 250


def test_the_first_pcl_has_the_steps_of_its_paper() -> None:
    assert configure("scenes", "imagenet_pcl_v1_200ep", {}).optim.schedule == "steps"
    assert configure("scenes", "imagenet_pcl_200ep", {}).optim.schedule == "cosine"


def test_the_queue_is_a_quarter_of_few_images() -> None:
    config = resolve({"method": "moco_v2"}, {})
    assert arguments(config, images=1000)["contrast"].queue == 250
    assert arguments(config, images=10_000_000)["contrast"].queue == 65_536
    config = resolve({"method": "moco_v2"}, {"contrast": {"queue": 7}})
    assert arguments(config, images=1000)["contrast"].queue == 7


def test_a_methods_own_settings_have_the_types_that_it_declares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "find_method", lambda name: Own)
    config = typed_options(resolve({}, {"options": {"scale": "0.5"}}))  # as a flag gives it
    assert config.options == {"scale": 0.5}
    assert arguments(config, images=9) == {"images": 9, "scale": 0.5}
    assert typed_options(resolve({}, {})).options == {"scale": 1.0}  # its default, said or not
    with pytest.raises(UserError, match=r"--options\.scale is 'big', but input should be"):
        typed_options(resolve({}, {"options": {"scale": "big"}}))


@pytest.mark.parametrize("name", list_recipes())
def test_no_shipped_recipe_sets_what_its_method_has_no_use_for(name: str) -> None:
    methods.refuse_unused(
        methods.find_method(read_recipe(name)["method"]),
        {
            group: read_recipe(name).get(group, {})
            for group in (*methods.GROUPS, "options", "views")
        },
    )
