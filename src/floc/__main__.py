"""`python -m floc`."""

from floc.cli import main

main()
