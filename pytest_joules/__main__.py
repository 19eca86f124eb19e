"""`python -m pytest_joules` is the `joules` command, whatever else on the path has that name."""

from pytest_joules.cli import main

main()
