"""`python -m lewel` is the command line."""

from lewel.cli import main

main()
