"""`python -m mugrpo`: the command line."""

import sys

from mugrpo.processes.driver import end_with_driver

if __name__ == "__main__":
    end_with_driver()
    from mugrpo.cli import main

    sys.exit(main())
