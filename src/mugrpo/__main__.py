"""`python -m mugrpo`: the command line."""

import sys


def main() -> int:
    """Run the command line, where mugrpo can run. Return the exit status."""
    if sys.platform == "win32":  # it has no fcntl, on which locks rest
        print("mugrpo runs on Linux and macOS; on Windows, use it in WSL", file=sys.stderr)
        return 2
    from mugrpo.processes.lifetime import end_with_driver

    end_with_driver()
    from mugrpo import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
