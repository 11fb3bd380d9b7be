"""What happened in a case, and whether it was right."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.hostile.case import Case

Kind = Literal["right", "traceback", "silent", "other"]
HUNG = -1000  # in place of an exit code
NOT_A_NUMBER = re.compile(r"(?<![\w./'\"-])-?(nan|inf)\b(?![/.'\"])", re.IGNORECASE)
# Words of Python's or torch's, which no user can act on.
INTERNAL = re.compile(
    r"weights_only|NoneType|pop from empty|<class '|object at 0x|\[Errno|KeyError|IndexError|"
    r"not subscriptable|Pydantic|pydantic"
)
LONGEST = 700  # characters of a refusal, without its paths
OWNED = "owned"  # what a malicious file would write, if its code were run
Snapshot = dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """A case with what was found."""

    kind: Kind
    what: str
    first: str  # the first line that was printed, of the errors where there are any
    seconds: float = 0.0


def snapshot(place: Path) -> Snapshot:
    """Every file below a folder, with a hash of its content."""
    found: Snapshot = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_symlink() or not path.is_file():
            found[name] = "link" if path.is_symlink() else "folder"
        else:
            try:
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:
                found[name] = "unreadable"
    return found


def verdict_of(
    case: Case, place: Path, code: int, out: str, err: str, before: Snapshot, after: Snapshot
) -> Verdict:
    """Compare what a command did with what is right."""
    said = out + "\n" + err
    shown = [line for line in (err if err.strip() else out).splitlines() if line.strip()]
    first = shown[0][:300] if shown else ""
    trace = [line for line in shown if re.match(r"\w+(\.\w+)*(Error|Exception|Warning)\b", line)]
    if "Traceback (most recent call last)" in said:
        return Verdict("traceback", "a traceback", trace[-1][:300] if trace else first)
    if code == HUNG:
        return Verdict("traceback", "it did not end in time", first)
    if code < 0 and case.signal != -code:
        return Verdict("traceback", f"killed by signal {-code}", " | ".join(shown[:3])[:900])
    if any(Path(name).name == OWNED for name in after):
        return Verdict("silent", "code in a file was run", first)
    wrong = _compare(case, place, code, said, err, before, after)
    if wrong is None:
        return Verdict("right", "", first)
    silent = code == 0 and case.right != "clear"
    return Verdict("silent" if silent else "other", wrong, first)


def _compare(
    case: Case, place: Path, code: int, said: str, err: str, before: Snapshot, after: Snapshot
) -> str | None:
    """What is wrong, if anything."""
    if case.right == "signal":
        return _signalled(case, place, code, said)
    if case.right == "clear":
        if case.says and not re.search(case.says, said):
            return f"exit {code} without {case.says!r} in its output"
        return None if code in (0, 1, 2) else f"exit {code}"
    if code == 0:
        return _ran(case, place, said)
    if case.right == "runs":
        return f"exit {code}, expected 0"
    if code == 1 and case.right != "stops":
        return "exit 1, expected 2"
    if code not in (1, 2):
        return f"exit {code}, expected 2"
    return _refused(case, err, before, after)


def _ran(case: Case, place: Path, said: str) -> str | None:
    if case.right in ("refused", "stops"):
        return "exit 0, expected a refusal"
    if case.says and not re.search(case.says, said):
        return f"exit 0 without {case.says!r} in its output"
    if found := NOT_A_NUMBER.search(said):
        return f"prints {found[0]!r} as a number"
    return None if case.check is None else case.check(place, said)


def _refused(case: Case, err: str, before: Snapshot, after: Snapshot) -> str | None:
    lines = [line for line in err.splitlines() if line.strip()]
    if not lines:
        return "refused without a word"
    if found := INTERNAL.search(err):
        return f"says {found[0]!r}, which is no user's word"
    if len(lines) > 2 or len(re.sub(r"\S*/\S*", "", err)) > LONGEST:
        return f"refused in {len(lines)} lines and {len(err)} characters, expected one sentence"
    if case.right == "refused" and case.says and not re.search(case.says, err):
        return f"refused without {case.says!r}"
    if case.right == "stops":
        return None
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    return f"refused, but wrote or changed {', '.join(changed[:4])}" if changed else None


def _signalled(case: Case, place: Path, code: int, said: str) -> str | None:
    if code not in (128 + case.signal, -case.signal):
        return f"exit {code}, expected {128 + case.signal}"
    if code < 0 and case.says:
        return f"killed by signal {-code} without a save"
    if case.says and not re.search(case.says, said):
        return f"stopped without {case.says!r} in its output"
    return None if case.check is None else case.check(place, said)
