"""The loop: accumulation, the order of the hooks, and no waiting for the device."""

import signal
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_fabric.plugins.precision.amp import MixedPrecision
from safetensors.torch import load_file

from lewel.bench.memory import peak_bytes
from lewel.config.build import build_method, build_optimizer
from lewel.config.resolve import resolve
from lewel.config.settings import read_yaml
from lewel.methods.base import Step
from lewel.methods.lewel_b import LewelB
from lewel.nn.bank import MemoryBank
from lewel.nn.prototypes import Prototypes
from lewel.nn.trainable import Trainable
from lewel.optim.sgd import make_sgd
from lewel.train import loop, saver
from lewel.train.devices import Placement, open_fabric, unchanged
from lewel.train.fabric import Fabric
from lewel.train.interrupt import Interruption
from lewel.train.run import Training, restore_optimizer
from lewel.train.saver import Saver
from lewel.train.skipped import undone_where
from tests.running import metrics, tiny_run


def test_hooks_run_once_a_step_whatever_the_accumulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("forward", "after_step", "before_epoch"):
        real = getattr(LewelB, name)

        def spy(self: LewelB, *args: object, _name: str = name, _real: object = real) -> object:
            calls.append(_name)
            return _real(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(LewelB, name, spy)
    assert tiny_run(tmp_path / "run", "--epochs", "2", "--limit", "16", "--accumulate", "2") == 0
    step = ["forward", "forward", "after_step"]
    assert calls == ["before_epoch", *step, *step] * 2


def test_accumulated_gradients_are_the_mean_over_the_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def linear(self: LewelB, views: list[torch.Tensor]) -> Step:
        weight = self.student.backbone.net.conv1.weight  # no batch statistics, so parts add up
        return Step((weight * views[0].mean((0, 2, 3)).view(1, 3, 1, 1)).sum(), {})

    monkeypatch.setattr(LewelB, "forward", linear)
    for parts in ("1", "4"):
        flags = ("--epochs", "1", "--optim.name", "sgd", "--accumulate", parts)
        assert tiny_run(tmp_path / parts, *flags) == 0
    one, four = (load_file(tmp_path / parts / "backbone.safetensors") for parts in ("1", "4"))
    initial = build_method(resolve(read_yaml(tmp_path / "1" / "config.yaml"), {}), images=32)
    moved = one["conv1.weight"] - initial.student.backbone.net.conv1.weight
    assert moved.abs().max() > 1e-3
    assert torch.allclose(one["conv1.weight"], four["conv1.weight"], atol=1e-6)


def spy_on_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows when a scalar is read back from a device."""
    reads: list[int] = []
    for name in ("item", "tolist", "__float__", "__bool__"):
        real = getattr(torch.Tensor, name)

        def spy(self: torch.Tensor, *args: object, _real: object = real) -> object:
            if self.requires_grad or self.ndim == 0:
                reads.append(1)
            return _real(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(torch.Tensor, name, spy)
    return reads


def test_nothing_is_read_back_from_the_device_between_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = spy_on_reads(monkeypatch)
    counts = []
    for index, every in enumerate(("16", "1")):
        reads.clear()
        flags = ("--epochs", "1", "--limit", "128", "--log-every", every)
        assert tiny_run(tmp_path / str(index), *flags) == 0
        counts.append(len(reads))
    assert counts[0] < 12  # a few at the ends of the run, none in its 16 steps
    assert counts[1] > counts[0] + 10


@pytest.mark.parametrize("optimizer", ["lars", "sgd", "adamw"])
def test_training_lowers_the_loss(tmp_path: Path, optimizer: str) -> None:
    lr = {"lars": "2.0", "sgd": "0.05", "adamw": "0.002"}[optimizer]
    flags = ("--epochs", "12", "--optim.name", optimizer, "--optim.lr", lr)
    assert tiny_run(tmp_path / "run", *flags, "--teacher.statistics", "ema") == 0
    losses = [line["loss"] for line in metrics(tmp_path / "run")[1:]]
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])


def use_scaler(monkeypatch: pytest.MonkeyPatch, first_scale: float) -> torch.amp.GradScaler:
    """Let runs train with a gradient scaler, as 16-mixed does on a GPU, in float32."""
    scaler = torch.amp.GradScaler("cpu", init_scale=first_scale)

    def opened(place: Placement, accelerator: str, precision: str, *_: object) -> Fabric:
        fabric = open_fabric(place, accelerator, "32", False)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        monkeypatch.setattr(plugin, "forward_context", nullcontext)
        monkeypatch.setattr(plugin, "convert_input", unchanged)
        fabric._strategy._precision = fabric._precision = plugin
        return fabric

    monkeypatch.setattr("lewel.config.build.open_fabric", opened)
    return scaler


PROTOTYPES = (
    "--options.prototypes 12 --options.frozen_steps 0 --options.queue 16 --views.small-crops 0"
)
SKIPPED = {  # method and optimiser: settings, and what a step that is not skipped changes
    ("lewel_b", "lars"): ("", "teacher.network.backbone.net.conv1.weight"),
    ("moco_v2", "sgd"): ("--contrast.norm-groups 4", "queue.keys"),
    ("byol", "adamw"): ("", "teacher.network.backbone.net.bn1.running_mean"),
    ("inst_disc", "sgd"): ("", "bank.entries"),
    ("swav", "sgd"): (PROTOTYPES, "student.head.prototypes.vectors"),
}


@pytest.mark.parametrize(("method", "optimizer"), SKIPPED)
def test_a_step_that_the_scaler_skips_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, optimizer: str
) -> None:
    settings, changed = SKIPPED[method, optimizer]
    flags = ("--method", method, "--optim.name", optimizer, "--optim.lr", "0.01", "--epochs", "1")
    flags += tuple(settings.split())
    scaler = use_scaler(monkeypatch, 2.0**127)  # overflows, and is halved, a few times
    reads = spy_on_reads(monkeypatch)
    states: list[tuple[dict[str, torch.Tensor], float]] = []
    taken = loop.take_step

    def observed(run: Training, *arguments: Any) -> Any:
        reads.clear()
        out = taken(run, *arguments)
        assert not reads  # nothing waits for the device
        weights = dict(run.method.named_parameters())
        kept = {n: b for n, b in run.method.named_buffers() if after_step_owns(n, run.method)}
        state = {name: one.detach().clone() for name, one in (weights | kept).items()}
        states.append((state, scaler.get_scale()))
        return out

    monkeypatch.setattr(loop, "take_step", observed)
    assert tiny_run(tmp_path / "run", *flags, "--limit", "96", "--precision", "16-mixed") == 0
    skips = 0
    for (before, scale), (after, next_scale) in pairwise(states):
        same = [name for name in before if torch.equal(before[name], after[name])]
        if next_scale < scale:
            assert same == list(before)
            skips += 1
        else:
            assert changed in before and changed not in same
    assert 0 < skips < len(states) - 1


def after_step_owns(buffer: str, method: torch.nn.Module) -> bool:
    """Whether no forward changes a buffer, as it does the statistics of a network in training."""
    network = buffer.rpartition(".")[0]
    statistics = buffer.endswith(("running_mean", "running_var", "num_batches_tracked"))
    return not statistics or not method.get_submodule(network).training


class Normalised(Trainable):
    """Trained vectors that `after_step` changes, as SwAV's; not of length 1 here."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = Prototypes(3, 5, 0.05)
        self.prototypes.vectors.data.mul_(1.7)

    def after_step(self, progress: float, keys: None) -> dict[str, float]:
        self.prototypes.normalise()
        return {}


@pytest.mark.parametrize("skipped", [True, False])
def test_trained_weights_that_after_step_changes_are_undone(skipped: bool) -> None:
    method = Normalised()
    before = method.prototypes.vectors.detach().clone()
    with undone_where(torch.tensor(skipped), method):
        method.after_step(0.0, None)
    after = method.prototypes.vectors.detach()
    assert torch.equal(after, before) == skipped
    assert skipped or torch.allclose(after.norm(dim=1), torch.ones(3))


class Banked(Trainable):
    """A bank that is large beside all else, changed twice a step, with an image in both."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = MemoryBank(40_000, 64, 0.5)
        self.register_buffer("counted", torch.zeros(()))

    def after_step(self, progress: float, keys: torch.Tensor) -> dict[str, float]:
        self.counted += 1
        for places in ([3, 5, 3], [5, 7, 9]):
            self.bank.update(torch.tensor(places), keys)
        return {}


@pytest.mark.parametrize("skipped", [True, False])
def test_a_bank_is_not_copied_to_undo_a_step(skipped: bool) -> None:
    method, keys = Banked(), torch.randn(3, 64)
    before = method.bank.entries.clone()

    def step() -> None:
        with undone_where(torch.tensor(skipped), method):
            method.after_step(0.0, keys)

    assert peak_bytes(step, torch.device("cpu")) < 0.01 * before.nbytes
    changed = (method.bank.entries != before).any(1).nonzero().flatten().tolist()
    assert changed == ([] if skipped else [3, 5, 7, 9])
    assert method.counted == (0 if skipped else 1)
    method.after_step(0.0, keys)  # outside of it nothing is recorded, and all is written
    assert bool((method.bank.entries[[3, 5, 7, 9]] != before[[3, 5, 7, 9]]).any(1).all())


def test_out_of_memory_is_one_message_whose_advice_resumes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = LewelB.forward

    def hungry(self: LewelB, views: list[torch.Tensor]) -> Step:
        if len(views[0]) > 4 and type(views[0]) is torch.Tensor:  # no estimate
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
        return real(self, views)

    monkeypatch.setattr(LewelB, "forward", hungry)
    monkeypatch.setattr("lewel.train.run.out_of_memory_message", _with_little_memory)
    assert tiny_run(tmp_path / "run", "--epochs", "1") == 1
    said = capsys.readouterr().err.strip()
    assert "cpu ran out of memory: 8 images of 16 px at a time" in said
    assert "--accumulate 2 (the same batch, 4 at a time)" in said
    assert len(said.splitlines()) == 1
    assert tiny_run(tmp_path / "run", "--epochs", "1", "--accumulate", "2") == 0
    assert "resumed at step 0" in capsys.readouterr().out


def _with_little_memory(method: LewelB, **numbers: object) -> str:
    from lewel.train.estimate import USABLE, estimate_memory, out_of_memory_message

    fits = estimate_memory(method, 1, 16, 4).total
    return out_of_memory_message(method, **{**numbers, "device_memory": int(fits / USABLE) + 2000})


def test_metrics_go_to_the_requested_loggers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flags = ("--loggers", "tensorboard", "--limit", "16")
    assert tiny_run(tmp_path / "run", *flags, "--epochs", "2") == 0
    assert tiny_run(tmp_path / "run", *flags, "--epochs", "3") == 0  # resumes the same curve
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    logged = [(event.step, event.value) for event in events.Scalars("loss")]
    lines = metrics(tmp_path / "run")[1:]
    assert [step for step, _ in logged] == [line["step"] for line in lines] == list(range(1, 7))
    assert [value for _, value in logged] == pytest.approx([line["loss"] for line in lines])
    assert tiny_run(tmp_path / "other", "--loggers", "tensorbord") == 2
    assert "tensorboard" in capsys.readouterr().err


def test_a_state_of_other_kernels_resumes_with_a_gradient_scaler() -> None:
    """Version 0.1's evaluations in 16 bits were not fused; a scaler needs fused steps."""
    weight = torch.nn.Linear(3, 1, bias=False).weight
    weight.grad = torch.ones(1, 3)
    before, now = make_sgd([weight]), make_sgd([weight], scaled=True)
    before.step()
    restore_optimizer(now, before.state_dict())
    assert now.param_groups[0]["fused"]
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    scaler.step(now)


def test_the_momentum_is_not_garbage_after_a_first_step_that_overflows() -> None:
    """Fused SGD would allocate it and return before it is written."""
    config = resolve({"method": "moco_v2", "precision": "16-mixed", "optim": {"name": "sgd"}}, {})
    weight = torch.nn.Linear(3, 1, bias=False)
    optimizer = build_optimizer(weight, config)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 0.1, 0.0
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN, which chance does not
    try:
        assert torch.empty(3).isnan().all()
        for gradient in (torch.inf, 1.0):
            before = weight.weight.detach().clone()
            scaler.scale(torch.zeros(()))
            weight.weight.grad = torch.full((1, 3), gradient * scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
    finally:
        torch.use_deterministic_algorithms(deterministic)
    assert torch.allclose(weight.weight, before - 0.1)
    # Evaluations ask for no fused steps: those take the scale on the device.
    for one in (optimizer, make_sgd([weight.weight], scaled=True)):
        assert one.defaults["fused"]


def test_inputs_are_not_rounded_to_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lewel.train.devices.check_cpu_precision", lambda precision: None)
    fabric = open_fabric(Placement(1, 1, "lewel"), "cpu", "bf16-mixed", False)
    boxes = torch.tensor([803.2, 1.0])
    assert fabric._precision.convert_input({"boxes": boxes})["boxes"] is boxes


@pytest.mark.parametrize("log_every", [7, 10_000])
def test_several_gpus_exchange_signals_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, log_every: int
) -> None:
    """Whatever --log-every: a signal is heard within 10 s, and fast steps do not wait for it."""
    now, calls = [0.0], []

    def exchange(mine: list[int], device: object) -> list[int]:
        calls.append(now[0])
        return [signal.SIGUSR1 if now[0] > 40 else 0, mine[1], max(mine[2], -300), 0]

    monkeypatch.setattr(saver, "ranks", lambda: 2)
    monkeypatch.setattr(saver, "highest", exchange)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    plan = SimpleNamespace(log_every=log_every, checkpoint_minutes=60)
    device = SimpleNamespace(type="cuda")
    monkeypatch.setattr(saver, "FiniteWatch", lambda device: None)
    run = SimpleNamespace(plan=plan, step=0, fabric=SimpleNamespace(device=device))
    own = Saver(run, Interruption())  # type: ignore[arg-type]
    while own.poll()[0] == 0:
        run.step += 1
        now[0] += 0.02 if now[0] < 20 else 0.04
    assert now[0] < 50
    apart = [after - before for before, after in pairwise(calls)]
    assert max(apart) < 10
    if log_every > 1000:
        assert len(calls) < 20
    else:
        assert len(calls) > run.step / 7
