"""`lewel` and `python -m lewel`: the command line."""

import os
import signal
import sys

from lewel.lazy_compiler import install


def main() -> None:
    """Import the commands and run one; Ctrl-C during the import ends without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.environ.get("COLUMNS", "").strip() == "0":  # a terminal whose width is not known
        del os.environ["COLUMNS"]
    try:
        os.getcwd()
    except OSError:
        sys.exit(_ended("The current folder does not exist any more: cd to another one."))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID"):
        if not os.environ.get(name, "0").isdecimal():
            what = f"{name} is {os.environ[name]!r} in the environment"
            sys.exit(_ended(f"{what}, expected a number: unset it."))
    install()  # by the command alone: `import lewel` changes nothing of torch for other programs
    from lewel.cli.main import main as run_command

    signal.signal(signal.SIGINT, handler)
    run_command()


def _ended(message: str) -> int:
    """Print why the command ends before anything is imported -> the exit code of wrong input."""
    print(message, file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
