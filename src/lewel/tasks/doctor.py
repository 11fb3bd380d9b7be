"""`lewel doctor`: is this machine ready, and what mends it."""

import getpass
import json
import platform
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from lewel.errors import UserError
from lewel.tasks.doctor_deep import examine
from lewel.tasks.doctor_facts import Facts, gather
from lewel.tasks.doctor_lines import Finding, assess, assess_speeds
from lewel.tasks.doctor_speed import Speeds, Tell, measure
from lewel.tasks.outcome import table
from lewel.train.devices import placement

SHM = "/dev/shm"  # the same on every machine
FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)*(?=[^\s/:'\"])")  # before a file's name
GPU_NUMBER = re.compile(r"\b(GPU|MIG)-[0-9a-f][0-9a-f/-]+")


@dataclass(frozen=True)
class Diagnosis:
    """What `lewel doctor` found: a line for each thing, and the numbers behind them."""

    findings: tuple[Finding, ...]
    facts: Facts
    speeds: Speeds
    seconds: float

    @property
    def healthy(self) -> bool:
        """Whether everything that is needed works."""
        return all(one.status != "failed" for one in self.findings)

    def as_json(self) -> str:
        """The report for an issue: without host name, user name and paths."""
        report = {
            "healthy": self.healthy,
            "findings": [asdict(one) for one in self.findings],
            "facts": {
                **asdict(self.facts),
                "devices": [one._asdict() for one in self.facts.devices],
            },
            "speeds": {
                "reading": self.speeds.reading._asdict(),
                "steps": {k: [s._asdict() for s in v] for k, v in self.speeds.steps.items()},
                "checkpoint": self.speeds.checkpoint._asdict(),
            },
            "seconds": round(self.seconds, 1),
        }
        return json.dumps(anonymous(report), indent=1)

    def _repr_html_(self) -> str:
        rows = {one.name: f"{one.status}: {one.text}" for one in self.findings}
        return table("lewel doctor", rows)


def doctor(deep: bool, tell: Tell) -> Diagnosis:
    """Read and measure this machine; `deep` also proves the installation on its devices."""
    if placement(None, None).ranks > 1:
        raise UserError(
            "lewel doctor examines one machine: start it once, without torchrun, or by "
            "srun --ntasks 1."
        )
    begun = time.monotonic()
    tell("reading versions, devices and limits")
    facts = gather()
    findings = assess(facts)
    speeds = measure(facts, tell)
    findings += assess_speeds(facts, speeds)
    if deep:
        findings += examine(facts, tell)
    return Diagnosis(tuple(findings), facts, speeds, time.monotonic() - begun)


def anonymous(value: Any) -> Any:
    """The same report where paths are file names; host, user and serial numbers are gone."""
    if isinstance(value, dict):
        return {key: anonymous(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(one) for one in value]
    if not isinstance(value, str):
        return value
    text = FOLDERS.sub("", value.replace(SHM, "\0")).replace("\0", SHM)
    text = GPU_NUMBER.sub(r"\1-...", text)
    names = [platform.node()]
    with suppress(OSError, KeyError):  # a user without an entry
        names.append(getpass.getuser())
    for name in filter(None, names):
        text = re.sub(rf"\b{re.escape(name)}\b", "...", text)
    return text
