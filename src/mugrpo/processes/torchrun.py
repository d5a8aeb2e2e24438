"""torchrun that ends with the process that starts it: python -m mugrpo.processes.torchrun ... FD

The last argument is the descriptor of a lifeline (`child`). The others are torchrun's.
"""

from __future__ import annotations

import runpy
import socket
import sys

from mugrpo.processes.child import end_with


def main() -> None:
    lifeline = socket.socket(fileno=int(sys.argv.pop()))
    lifeline.set_inheritable(False)
    end_with(lifeline)
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
