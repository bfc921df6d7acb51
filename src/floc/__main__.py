"""`python -m floc`."""

from floc.cli import main

if __name__ == "__main__":
    main()
