"""TensorBoard, Weights & Biases and MLflow: they log the lines of metrics.jsonl."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from lewel.errors import UserError
from lewel.files import write_atomically

Lines = list[dict[str, Any]]
SETTLED = 30.0  # seconds after which wandb has written a step: it writes every 15


class Logger(Protocol):
    """Where the numbers of a run go besides metrics.jsonl."""

    def log(self, lines: Lines) -> None: ...
    def close(self, failed: bool = False) -> None: ...


@dataclass(frozen=True)
class Session:
    """One process of a run: what the back ends need."""

    folder: Path
    name: str
    config: dict[str, Any]
    resumed_at: int | None
    report: Callable[[str], None]

    def saved(self, file: str) -> str:
        """The text that an earlier session of this run wrote; empty where the run starts anew."""
        path = self.folder / file
        return path.read_text() if self.resumed_at is not None and path.exists() else ""


class TensorBoard:
    """Events in <run>/tensorboard."""

    def __init__(self, session: Session) -> None:
        package = import_module("torch.utils.tensorboard")
        # TensorBoard hides older files' events from this step on, so every step shows once.
        first = 0 if session.resumed_at is None else session.resumed_at + 1
        self.writer = package.SummaryWriter(str(session.folder / "tensorboard"), purge_step=first)
        # Not `add_hparams`: it opens a second file, and a running TensorBoard then drops the first.
        about = package.summary.hparams(flatten(session.config), {})[1]
        self.writer.file_writer.add_summary(about, first)

    def log(self, lines: Lines) -> None:
        for line in lines:
            for key, value in scalars(line).items():
                self.writer.add_scalar(key, value, line["step"])
        self.writer.flush()  # a kill must not lose steps that a checkpoint already has

    def close(self, failed: bool = False) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases, its files in <run>/wandb; offline where there is no API key."""

    def __init__(self, session: Session) -> None:
        wandb, self.step_file = import_module("wandb"), session.folder / ".wandb_step"
        name = session.saved(".wandb_id") or uuid4().hex[:8]
        write_atomically(session.folder / ".wandb_id", lambda aside: aside.write_text(name))
        keyless = not os.environ.get("WANDB_MODE") and not wandb.login(prompt=False, verify=False)
        quiet = {"silent": True, "console": "off"}  # the terminal is for the live line
        patience = {"finish_timeout": 300, "finish_timeout_raises": True}  # seconds, to upload
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lewel"),
            name=session.name,
            id=name,
            resume="allow",
            dir=str(session.folder),
            config=session.config,  # nested: wandb makes dotted keys itself
            allow_val_change=True,  # epochs and workers may differ after a resume
            mode="offline" if keyless else None,
            reinit="create_new",  # leaves the calling script's own run open
            settings=wandb.Settings(**quiet, **patience),
        )
        # Online, wandb ignores steps that its server has. Offline, each session has a folder, and
        # `wandb sync` joins them only if they share no step: steps already logged are left out.
        self.last = int((self.run.offline and session.saved(".wandb_step")) or -1)
        self.step_file.write_text(str(self.last))  # a run that starts anew resets it
        self.before, self.since = self.last, time.monotonic()
        if keyless:
            command = f"wandb sync {session.folder}/wandb/offline-run-*-{name}"
            session.report(f"wandb found no API key and logs offline; to upload later: {command}")
        elif not self.run.offline and self.run.url:
            session.report(f"wandb shows this run at {self.run.url}")

    def log(self, lines: Lines) -> None:
        for line in lines:
            if line["step"] > self.last:
                self.run.log(scalars(line), step=line["step"], commit=True)
                self.last = line["step"]
        if time.monotonic() - self.since > SETTLED:  # so that a resume skips no step
            self.step_file.write_text(str(self.before))
            self.before, self.since = self.last, time.monotonic()

    def close(self, failed: bool = False) -> None:
        self.run.finish(exit_code=int(failed))
        self.step_file.write_text(str(self.last))


class MLflow:
    """A run on the server of MLFLOW_TRACKING_URI, or else in a database in <run>/mlruns."""

    STEP = "lewel.last_step"  # a tag: how far the curve goes

    def __init__(self, session: Session) -> None:
        self.mlflow, self.entities = import_module("mlflow"), import_module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # otherwise it logs every table
        uri, self.artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:  # SQLite, because MLflow 3 refuses a file store
            store = (session.folder / "mlruns").resolve()
            store.mkdir(exist_ok=True)
            uri, self.artifacts = f"sqlite:///{store}/mlflow.db", (store / "artifacts").as_uri()
        self.client = self.mlflow.MlflowClient(tracking_uri=uri)
        run = self._same_or_new_run(session)
        self.id = run.info.run_id
        write_atomically(session.folder / ".mlflow_id", lambda aside: aside.write_text(self.id))
        self.client.update_run(self.id, status="RUNNING")
        # MLflow would store a step twice: steps already logged are left out. It refuses to change
        # a parameter: the first value stays.
        self.last = int(run.data.tags.get(self.STEP, -1))
        params = [
            self.entities.Param(key, str(value)[:500])  # the limit of older servers
            for key, value in flatten(session.config).items()
            if key not in run.data.params
        ]
        for start in range(0, len(params), 100):  # the limit of one call
            self.client.log_batch(self.id, params=params[start : start + 100])

    def _same_or_new_run(self, session: Session) -> Any:
        if known := session.saved(".mlflow_id"):
            try:
                return self.client.get_run(known)
            except self.mlflow.MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise  # otherwise the earlier session used another server
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "lewel")
        found = self.client.get_experiment_by_name(title)
        number = found and found.experiment_id
        number = number or self.client.create_experiment(title, self.artifacts)
        return self.client.create_run(number, run_name=session.name)

    def log(self, lines: Lines) -> None:
        now, new = int(time.time() * 1000), [line for line in lines if line["step"] > self.last]
        for start in range(0, len(new), 20):  # a call takes 1000 values, a line has about ten
            some = new[start : start + 20]
            numbers = [
                (*pair, now, line["step"]) for line in some for pair in scalars(line).items()
            ]
            self.last = some[-1]["step"]
            self.client.log_batch(
                self.id,
                metrics=[self.entities.Metric(*number) for number in numbers],
                tags=[self.entities.RunTag(self.STEP, str(self.last))],
            )

    def close(self, failed: bool = False) -> None:
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


BackEnd = Callable[[Session], Logger]
BACK_ENDS: dict[str, tuple[BackEnd, list[str]]] = {  # each with the packages it needs
    "tensorboard": (TensorBoard, ["torch.utils.tensorboard"]),
    "wandb": (WandB, ["wandb"]),
    "mlflow": (MLflow, ["mlflow", "sqlalchemy", "alembic"]),  # mlflow-skinny leaves two out
}


class Guarded:
    """A logger that is dropped with a message when it fails: training continues."""

    def __init__(self, name: str, logger: Logger, report: Callable[[str], None]) -> None:
        self.name, self.report = name, report
        self.logger: Logger | None = logger

    def log(self, lines: Lines) -> None:
        if lines:
            self._try(lambda logger: logger.log(lines))

    def close(self, failed: bool = False) -> None:
        self._try(lambda logger: logger.close(failed))
        self.logger = None

    def _try(self, act: Callable[[Logger], None]) -> None:
        try:
            if self.logger is not None:
                act(self.logger)
        except Exception as error:  # any error of a network, a disk or a package
            self.logger = None
            self.report(
                f"The logger {self.name} failed ({reason(error)}): the run continues without it, "
                "and metrics.jsonl has every value."
            )


def open_loggers(
    names: Sequence[str],
    folder: Path,
    name: str,
    config: dict[str, Any],
    resumed_at: int | None,
    report: Callable[[str], None] = print,
) -> list[Logger]:
    """Open the requested loggers; after a resume each continues its curve."""
    for logger in names:
        if logger not in BACK_ENDS:
            raise UserError(f"There is no logger {logger!r}: expected {', '.join(BACK_ENDS)}.")
        for package in BACK_ENDS[logger][1]:
            try:
                import_module(package)
            except ImportError as error:
                raise UserError(
                    f"The logger {logger!r} needs a package that is not installed ({error}): "
                    f"pip install 'lewel[{logger}]'."
                ) from None
    session, opened = Session(folder, name, config, resumed_at, report), list[Logger]()
    for logger in dict.fromkeys(names):
        try:
            opened.append(Guarded(logger, BACK_ENDS[logger][0](session), report))
        except Exception as error:
            message = f"The logger {logger!r} could not be opened ({reason(error)})"
            if resumed_at is None:  # a resume may be unattended: it continues without the logger
                for other in opened:
                    other.close(failed=True)
                raise UserError(f"{message}: repair that, or leave it out.") from error
            report(f"{message}: the run continues without it, and metrics.jsonl has every value.")
    return opened


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line, without its step."""
    return {key: value for key, value in line.items() if key != "step" and is_number(value)}


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, float | str]:
    """Nested values under dotted keys; all but numbers become text."""
    flat: dict[str, float | str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if is_number(value) else str(value)
    return flat


def reason(error: Exception) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
