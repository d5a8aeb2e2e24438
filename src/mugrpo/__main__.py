"""`python -m mugrpo`: the command line."""

import signal
import sys


def main() -> int:
    """Run the command line, where mugrpo can run. Return the exit status."""
    if sys.platform == "win32":  # it has no fcntl, on which locks rest
        print("mugrpo runs on Linux and macOS; on Windows, use it in WSL", file=sys.stderr)
        return 2
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has begun: no traceback of imports
    from mugrpo.processes.lifetime import end_with_driver

    end_with_driver()
    from mugrpo import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
