"""`python -m mugrpo`: the command line."""

import sys

from mugrpo.cli import main

if __name__ == "__main__":
    sys.exit(main())
