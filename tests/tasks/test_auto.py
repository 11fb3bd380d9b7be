"""`lewel pretrain FOLDER` without a recipe, on real folders."""

import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import lewel
from lewel.cli.main import run
from lewel.config.auto_choices import Choices, Facts
from lewel.config.build import build_method, load_initial
from lewel.config.configure import configure
from lewel.config.methods import as_recipe
from lewel.config.pretrain import PretrainConfig
from lewel.config.settings import write_yaml
from lewel.config.sizes import check_batch, crop_sizes
from lewel.data.sources.open import open_data
from lewel.data.views.blocks import BLOCK
from lewel.errors import UserError
from lewel.nn.backbone import build_resnet, build_timm
from lewel.progress import plain_console
from lewel.tasks import auto, auto_facts, speed
from lewel.train.estimate import estimate_memory
from tests.running import as_torchrun, metrics, tiny_command, tiny_run

RANDOM = np.random.default_rng(0)
SMALL = ("--width", "8", "--image-size", "32", "--head.hidden", "16", "--head.dim", "8")
ONCE = ("--epochs", "1", "--workers", "0", "--accelerator", "cpu", "--contrast.queue", "64")


def photo(path: Path, width: int = 48, height: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 255, (height, width, 3), np.uint8)).save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auto") / "photos"
    for index in range(64):
        photo(folder / f"{index}.png")
    return folder


def test_a_folder_is_trained_with_settings_that_fit_it_and_resumes_with_the_same(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pretrain", str(photos), *SMALL, *ONCE, "--out", str(tmp_path / "run")]
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert "batch size" in shown and "a third of 64 images at most" in shown
    assert "--batch-size" in shown and "64 images are few" in shown
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["batch_size"], config["method"], config["stem"]) == (16, "lewel_m", "small")
    more = [word if word != "1" else "2" for word in command]
    assert run(more) == 0
    assert "because" not in capsys.readouterr().out
    again = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert again == config | {"epochs": 2}
    assert metrics(tmp_path / "run")[-1]["epoch"] == 2
    capsys.readouterr()
    for other in (["--seed", "1"], ["--head.dim", "16"]):  # a dry run refuses what a run refuses
        same = [*command, *other] if other[0] == "--seed" else [*command[:2], *other, *command[-2:]]
        assert run([*same, "--dry-run"]) == 2
        assert "holds another run" in capsys.readouterr().err


def test_the_table_shows_given_options_and_how_to_turn_a_switch_off(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"method": "swav", "options": {"prototypes": 77}, "accelerator": "cpu"}
    found = auto.settings(str(photos), None, given)
    assert found.config.options["prototypes"] == 77
    assert found.choices is not None and found.choices["options.prototypes"] == 77
    auto.show_settings(found, plain_console())
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (prototypes,) = (row for row in rows if row[:2] == ["options:", "prototypes"])
    assert prototypes[2:4] == ["77", "given"] and prototypes[-1] == "--options.prototypes"
    (layout,) = (row for row in rows if row[:2] == ["channels", "last"])
    assert layout[2] == "True" and layout[-1] == "--no-channels-last"


def test_a_begun_run_in_the_usual_folder_is_found_whatever_its_method(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert auto.settings(str(photos), None, {}).config.method == "lewel_m"
    folder = tmp_path / "runs" / "photos-lewel_b"
    folder.mkdir(parents=True)
    before = configure(str(photos), "paper", {"batch_size": 32, "limit": 40})
    write_yaml(as_recipe(before), folder / "config.yaml")
    found = auto.settings(str(photos), None, {})
    assert found.choices is None and found.config == before


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_run_whose_settings_are_lost_resumes_with_those_of_its_checkpoint(
    photos: Path, tmp_path: Path, damage: str
) -> None:
    command = ["pretrain", str(photos), *SMALL, *ONCE, "--out", str(tmp_path / "run")]
    assert run(command) == 0
    file = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("batch_size: [")
    assert run(["pretrain", str(photos), "--epochs", "2", "--out", str(tmp_path / "run")]) == 0
    assert yaml.safe_load(file.read_text()) == config | {"epochs": 2}


def test_of_two_begun_runs_none_is_resumed_by_chance(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for method in ("lewel_b", "lewel_m"):
        (folder := tmp_path / "runs" / f"photos-{method}").mkdir(parents=True)
        config = configure(str(photos), "paper", {"method": method, "limit": 40})
        write_yaml(as_recipe(config), folder / "config.yaml")
    with pytest.raises(UserError, match="both exist: give --method lewel_b or --method"):
        auto.settings(str(photos), None, {})
    found = auto.settings(str(photos), None, {"method": "lewel_m"}, budget="1h30m")
    assert found.config.method == "lewel_m" and found.config.limit == 40
    assert "runs/photos-lewel_m exists: its settings are used" in found.notes[0]
    assert f"this one has {found.config.epochs} epochs" in found.notes[1]
    # Other data of the same name has not been begun.
    shutil.copytree(photos, tmp_path / "other" / "photos")
    assert auto.settings(str(tmp_path / "other" / "photos"), None, {}).choices is not None


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h30m", 5400), ("30min", 1800), ("30M", 1800), ("1d 2h", 93600)]
)
def test_budgets_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert auto.parse_budget(text) == seconds


def test_what_a_user_may_not_expect_is_noted(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    assert auto.settings(str(folder), None, {}, tmp_path / "run").notes == ()
    for index in range(10):
        (folder / f"{index}.png").write_bytes(b"no image")
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**6))
    corrupt, disk = auto.settings(str(folder), None, {}, tmp_path / "run").notes
    assert "10 of 64 images that were looked at are corrupt" in corrupt
    assert "checkpoints take about" in disk and f"{tmp_path} has 0.0 GB free" in disk


def test_a_file_of_weights_decides_the_network(photos: Path, tmp_path: Path) -> None:
    net = build_resnet("resnet18", stem="imagenet", width=16)
    torch.save(net.state_dict(), tmp_path / "weights.pth")
    found = auto.settings(str(photos), None, {"init": str(tmp_path / "weights.pth")}).config
    assert (found.backbone, found.stem, found.width) == ("resnet18", "imagenet", 16)
    assert found.image_size == 128  # 4 x 4 locations


def test_the_size_of_images_is_that_of_the_weights(tmp_path: Path) -> None:
    many(tmp_path / "photos", 60, width=300, height=240)
    photos = str(tmp_path / "photos")
    name = "timm/vit_tiny_patch16_224"
    torch.save(build_timm(name.partition("/")[2], 224).state_dict(), tmp_path / "vit.pth")
    given = {"backbone": name, "init": str(tmp_path / "vit.pth")}
    found = auto.settings(photos, None, given).config
    assert (found.backbone, found.image_size, found.optim.name) == (name, 224, "adamw")
    load_initial(build_method(found, 60), given["init"])
    run_folder = tmp_path / "run"
    assert tiny_run(run_folder, "--epochs", "1") == 0
    found = auto.settings(photos, None, {"init": str(run_folder)}).config
    assert (found.stem, found.width, found.image_size) == ("small", 8, 16)
    load_initial(build_method(found, 60), str(run_folder))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("swin_tiny_patch4_window7_224", 224),  # tables of relative positions
        ("mixer_s32_224", 224),  # products over positions
        ("levit_128s", 224),  # takes no other size
        ("vit_tiny_patch16_384", 384),
        ("resnet10t", None),
        ("coatnet_nano_rw_224", 224),
    ],
)
def test_weights_that_the_image_size_fixes_keep_their_own(name: str, size: int | None) -> None:
    assert auto_facts.architecture_of(f"timm/{name}").image_size == size


def test_a_checkpoint_of_a_run_tells_the_size_of_its_images(tmp_path: Path) -> None:
    vit = ("--backbone", "timm/vit_tiny_patch16_224", "--image-size", "32")
    given = [*vit, "--method", "byol", "--epochs", "1", "--optim.name", "adamw"]
    words = tiny_command(tmp_path / "run", *given)
    for flag in ("--stem", "--width"):
        del words[words.index(flag) : words.index(flag) + 2]
    assert run(words) == 0
    for init in (tmp_path / "run", max((tmp_path / "run" / "checkpoints").glob("*.pt"))):
        assert (auto_facts.network_of({"init": str(init)}) or {})["image_size"] == 32


def test_a_network_that_is_too_large_gets_one_message(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pretrain", str(photos), "--head.hidden", "1000000000", "--dry-run"]) == 1
    assert "Memory ran out before the first step" in capsys.readouterr().err


def test_where_nothing_fits_the_memory_it_is_said(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lewel.tasks.auto_facts.host_memory", lambda: (10**7, 10**7))
    found = auto.settings(str(photos), None, {"accelerator": "cpu"})
    assert any("choose a smaller --image-size or --backbone" in note for note in found.notes)
    share, groups = found.config.batch_size, found.config.contrast.norm_groups
    assert share // found.config.accumulate >= 2 * groups


@pytest.mark.parametrize(("devices", "batch", "groups"), [(2, 62, 2), (3, 255, 3), (5, 255, 4)])
def test_a_process_estimates_its_own_part_of_the_groups(
    devices: int, batch: int, groups: int
) -> None:
    """62 images are no multiple of 4 groups, but a device's 31 are of its own one."""
    given = {"batch_size": batch, "contrast": {"norm_groups": groups}}
    config = configure("scenes", "tinyimagenet_lewel_m_15min", given)
    assert estimated(config, devices) > 0


def estimated(config: PretrainConfig, ranks: int) -> int:
    check_batch(config, "photos", 10_000, ranks)
    method = build_method(config, 10_000, ranks)
    return estimate_memory(method, 1, crop_sizes(config), config.batch_size // ranks).total


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 63}, "cannot be shared by 2 devices"),
        ({"batch_size": 128}, "larger than the data"),
        ({"batch_size": 62}, None),
    ],
)
def test_batches_are_checked_before_anything_is_estimated(
    photos: Path, given: dict[str, int], message: str | None
) -> None:
    all_given = {**given, "devices": 2, "limit": 64, "accelerator": "cpu"}
    if message is None:
        assert auto.settings(str(photos), None, all_given).config.batch_size == 62
        return
    with pytest.raises(UserError, match=message):
        auto.settings(str(photos), None, all_given)


@pytest.mark.parametrize(
    ("speeds", "method", "speed"),
    [
        ({"lewel_m": 4_000.0, "lewel_b": 3_300.0}, "lewel_b", 3_300.0),
        ({"lewel_m": 4_000.0, "lewel_b": 900.0}, "lewel_m", 4_000.0),  # too slow for long training
        ({"lewel_m": 100.0}, "lewel_m", 100.0),
    ],
)
def test_a_budget_is_that_of_the_method_that_is_trained(
    monkeypatch: pytest.MonkeyPatch, speeds: dict[str, float], method: str, speed: float
) -> None:
    monkeypatch.setattr(auto, "reading_of", lambda *given: 0.001)
    monkeypatch.setattr(
        auto, "images_per_second", lambda config, *others, reading: speeds[config.method]
    )
    given = {"accelerator": "cpu", "width": 8, "backbone": "resnet10"}
    found = auto.settings("scenes", None, given, budget="20m").config
    assert found.method == method
    assert 0.98 < found.epochs * 20_000 / (0.85 * 1200 * speed) <= 1


def test_few_images_at_a_time_and_coarse_maps_are_warned_of(photos: Path) -> None:
    given = {"accelerator": "cpu", "batch_size": 8, "image_size": 48, "stem": "medium"}
    found = auto.settings(str(photos), None, {**given, "method": "byol"})
    assert "locations" not in " ".join(found.notes)  # without maps
    notes = " ".join(auto.settings(str(photos), None, given).notes)
    assert "only 8 images at a time, too few for batch norms: raise --batch-size." in notes
    assert "maps have 9 locations: give a larger --image-size or a finer --stem" in notes
    assert auto.settings(str(photos), None, {"accelerator": "cpu"}).notes == ()


def test_gpus_that_are_not_used_are_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = namedtuple("Device", "total_memory")(32 * 10**9)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    opened = open_data(str(photos), image_size=32)
    assert auto_facts.gather(opened, {}, None)[1] == ["1 of 8 GPUs: --devices 8 uses all."]
    assert auto_facts.gather(opened, {"devices": 8}, None)[1] == []


class Slow:
    """A data set whose images take so many seconds by a clock of its own."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.calls = seconds, 0.0, list[int]()
        self.indices = list[int]()

    def __getitems__(self, places: list[tuple[int, int]]) -> None:
        self.indices += [index for _, index in places]
        self.calls.append(len(places))
        self.now += self.seconds * len(places)


def test_reading_is_timed_on_few_images_and_as_in_training() -> None:
    for seconds, remote, calls in ((0.1, False, 24), (2.0, False, 3), (0.1, True, 2)):
        data = Slow(seconds)
        found = speed.reading_seconds(data, 1000, remote, lambda data=data: data.now)
        assert found == pytest.approx(seconds) and len(data.calls) == calls
    remote = Slow(0.1)
    speed.reading_seconds(remote, 100_000, True)
    looked = set(np.linspace(0, 99_999, auto_facts.SAMPLE).astype(int).tolist())
    timed = {index // BLOCK for index in remote.indices[1:]}
    assert len(timed) <= 3 and not timed & {index // BLOCK for index in [0, *looked]}
    with speed.threads_of_rank(2, 1):
        assert torch.get_num_threads() == 1
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert speed.seconds_together(1.0, 4.0, cpu, workers=0, cores=2) == 5.0
    assert speed.seconds_together(1.0, 4.0, cpu, workers=2, cores=8) == 1.5
    assert speed.seconds_together(1.0, 4.0, gpu, workers=2, cores=8) == 2.0


def test_networks_of_timm_are_taken_without_a_recipe(photos: Path) -> None:
    for name, optimiser in (("convnext_atto", "adamw"), ("resnet10t", "sgd")):
        found = auto.settings(str(photos), None, {"backbone": f"timm/{name}"})
        assert (found.config.optim.name, found.config.image_size) == (optimiser, 128)


def test_python_shows_the_choices_too(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"width": 8, "image_size": 32, "head": {"hidden": 16, "dim": 8}, "epochs": 1}
    lewel.pretrain(photos, out=tmp_path / "run", workers=0, accelerator="cpu", **small)
    output = capsys.readouterr().out
    assert "because" in output and "--contrast.shuffle-bn-groups" in output
    for wrong in ({"image_size": "large"}, {"batch_size": 0}, {"devices": "two"}):
        with pytest.raises(UserError, match=str(*wrong)):
            lewel.pretrain(photos, **wrong)
    with pytest.raises(UserError, match="--budget is 5"):
        lewel.pretrain(photos, budget=5)  # type: ignore[arg-type]


def test_dry_run_shows_the_choices_and_writes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--budget", "2m", "--accelerator", "cpu", "--out", str(tmp_path / "run"), "--dry-run"]
    assert run(["pretrain", str(photos), *SMALL, *words]) == 0
    shown = capsys.readouterr().out
    assert "images/s measured" in shown and "memory of a device" in shown
    assert "s without reading images" in shown
    assert not (tmp_path / "run").exists()


def many(folder: Path, count: int, **size: int) -> None:
    for index in range(count):
        photo(folder / f"{index}.png", **size)


def only_corrupt(folder: Path) -> None:
    folder.mkdir()
    for index in range(60):
        (folder / f"{index}.jpg").write_bytes(b"\xff\xd8 not an image")


def sixteen_bits(folder: Path) -> None:
    folder.mkdir()
    for index in range(60):
        pixels = RANDOM.integers(0, 65535, (40, 40)).astype(np.uint16)
        Image.fromarray(pixels).save(folder / f"{index}.png")


def one_class(folder: Path) -> None:
    many(folder / "cats", 60)


def nested(folder: Path) -> None:
    many(folder / "a" / "b" / "c" / "d" / "e" / "f", 60)


def links(folder: Path) -> None:
    many(folder.parent / "elsewhere", 60)
    folder.mkdir()
    for path in (folder.parent / "elsewhere").iterdir():
        (folder / path.name).symlink_to(path)


def mixed_sizes(folder: Path) -> None:
    for index in range(60):
        photo(folder / f"{index}.png", width=20 + 8 * index, height=400 - 6 * index)


def large(folder: Path) -> None:
    many(folder, 60)
    photo(folder / "large.png", width=3000, height=2000)


def identical(folder: Path) -> None:
    photo(folder / "0.png")
    for index in range(1, 60):
        shutil.copy(folder / "0.png", folder / f"{index}.png")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: many(folder, 1), "There is 1 image, too few"),
        (lambda folder: many(folder, 49), "There are 49 images, too few"),
        (lambda folder: many(folder, 50), "steps: "),
        (only_corrupt, "images can be read, such as"),
        (sixteen_bits, "steps: "),
        (lambda folder: many(folder, 60, width=20, height=20), "the images have 20 px"),
        (large, "steps: "),
        (identical, "have the same pixels"),
        (one_class, "steps: "),
        (nested, "steps: "),
        (links, "steps: "),
        (mixed_sizes, "steps: "),
    ],
)
def test_odd_folders_get_a_sentence_or_a_table(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
    expected: str,
) -> None:
    make(tmp_path / "odd")
    words = ["--accelerator", "cpu", "--dry-run", "--width", "8", "--epochs", "1"]
    code = run(["pretrain", str(tmp_path / "odd"), *words])
    shown = capsys.readouterr()
    assert code == (0 if "steps" in expected or "px" in expected else 2)
    assert expected in (shown.out if code == 0 else shown.err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--budget", "soon"], "--budget is 'soon': expected a time from 1m to 366d"),
        (["--budget", "400d"], "--budget is '400d': expected a time from 1m to 366d"),
        (["--budget", "5m 5"], "--budget is '5m 5'"),
        (["--budget", "5"], "--budget is '5'"),
        (["--budget", "10s"], "--budget is '10s'"),
        (["--budget", "1h", "--recipe", "scenes_demo"], "has its own: leave out one"),
        (["--budget", "1h", "--epochs", "3"], "--epochs 3 is given: leave out one"),
        (["--init", "timm/resnet5O"], "no published weights 'resnet5O'. Did you mean"),
        (["--init", "timm/resnet50.nope"], "no published weights 'resnet50.nope'. Did you mean"),
        (["--backbone", "timm/resnet50.nope"], "has no model 'resnet50.nope'. Did you mean"),
        (["--init", "resnet50"], "or torchvision/resnet50"),
        (["--init", "torchvision/vgg16"], "torchvision/vgg16 is no backbone of ours"),
    ],
)
def test_mistakes_get_one_message(
    photos: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert run(["pretrain", str(photos), *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_budget_needs_one_process(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_torchrun(monkeypatch, 2, 2)
    with pytest.raises(UserError, match="that torchrun has started: give --epochs"):
        auto.settings(str(photos), None, {}, None, "1h")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("memory", [10**12, 10**8])
def test_a_batch_that_does_not_fit_a_device_is_accumulated(
    memory: int, device: Literal["cpu", "cuda"]
) -> None:
    facts = Facts(images=10_000, side=64, labelled=False, device=device, memory=memory, cores=4)
    given = {"method": "lewel_b", "backbone": "resnet10", "stem": "small", "width": 16}
    sizes = {"image_size": 32, "batch_size": 256, "head": {"dim": 32, "hidden": 64}}
    config = configure("scenes", "paper", {**given, **sizes})
    method = build_method(config, 10_000)
    parts = auto.micro_batches(256, auto.fitting_batch(config, method, facts), 1)

    def needed(parts: int) -> int:
        return estimate_memory(method, 1, 32, 256 // parts).total

    assert needed(parts) <= 0.9 * memory
    assert parts == 1 or needed(parts // 2) > 0.9 * memory


@pytest.mark.parametrize(
    ("share", "fits", "groups", "parts"),
    [(64, 64, 1, 1), (64, 30, 1, 4), (64, 30, 4, 4), (127, 30, 1, 1), (64, 0, 8, 4)],
)
def test_a_share_is_cut_into_equal_parts(share: int, fits: int, groups: int, parts: int) -> None:
    assert auto.micro_batches(share, fits, groups) == parts


def test_small_micro_batches_have_true_reasons_and_a_warning(photos: Path) -> None:
    def settle(memory: int, **given: object) -> tuple[Choices, list[str]]:
        facts = Facts(10_000, 64, False, "cpu", memory, cores=2)
        choices, config, method = auto.settle(str(photos), facts, {"epochs": 9, **given})
        return choices, auto.notes_on_memory(config, method, facts)

    choices, notes = settle(3 * 10**7)
    assert choices["accumulate"] > 1 and choices["contrast.norm_groups"] == 1
    assert "few images" in choices.made["contrast.norm_groups"].because
    assert any("too few for batch norms" in note for note in notes)
    choices, notes = settle(6 * 10**7, batch_size=127)
    assert choices["accumulate"] == 1 and "does not fit" in choices.made["accumulate"].because
    assert any("127 images at a time need" in note for note in notes)


def test_a_run_that_learns_nothing_says_so(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "two"
    for name in ("a", "b"):
        many(folder / name, 40)
    still = ("--optim.lr", "0.000001", "--knn.neighbours", "5")
    assert run(["pretrain", str(folder), *SMALL, *ONCE, *still, "--out", str(tmp_path / "r")]) == 0
    lines = metrics(tmp_path / "r")
    rose = lines[-1]["knn"] > lines[0]["knn"]
    assert ("k-NN did not rise" in capsys.readouterr().out) == (not rose)
    done = lewel.pretrain(recipe=tmp_path / "r" / "config.yaml", out=tmp_path / "r")  # finished
    assert ("k-NN did not rise" in capsys.readouterr().out) == (not rose)
    assert (replace(done, knn_before=0.5, knn=0.5).warning or "").startswith("k-NN did not rise")
    assert replace(done, knn_before=0.5, knn=0.6).warning is None
    assert replace(done, knn_before=None, knn=0.5).warning is None


def test_storage_is_waited_for_as_long_as_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pretrain", "http://127.0.0.1:9/none", "--out", str(tmp_path / "run")]
    assert run([*words, "--storage-timeout", "0.01"]) == 1
    assert "has not answered for 0.01 minutes" in capsys.readouterr().err
    assert run([*words, "--storage-timeout", "-1"]) == 2
