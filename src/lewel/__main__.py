"""`lewel` and `python -m lewel`: the command line."""

import signal

from lewel.lazy_compiler import install


def main() -> None:
    """Import the commands and run one; Ctrl-C during the import ends without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    install()  # by the command alone: `import lewel` changes nothing of torch for other programs
    from lewel.cli.main import main as run_command

    signal.signal(signal.SIGINT, handler)
    run_command()


if __name__ == "__main__":
    main()
