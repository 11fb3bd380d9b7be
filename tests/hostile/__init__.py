"""A campaign of hostile inputs: `python -m tests.hostile --minutes 20`.

Each module that ends in `_cases` is a family: a table of command lines, what is hostile in them,
and what is right. `runner.py` forks one imported interpreter for each case; `verdict.py` decides.
"""
