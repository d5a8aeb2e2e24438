"""The program of an environment worker: loads the environment, then answers for its rollouts.

python -P -m mugrpo.environments.worker MEGABYTES SOCKET LIFELINE
"""

from __future__ import annotations

from typing import Any

from mugrpo.config.environment import EnvironmentOptions
from mugrpo.environments.host import Host
from mugrpo.processes.workers import Answer, serve


def _load(setup: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    options = EnvironmentOptions.model_validate(setup["environment"])
    host = Host(options, own_reward=setup["own_reward"])
    return (
        {"tools": host.schemas() if setup["describe"] else None},
        lambda message: host.answer(message[0] | message[1]),
    )


if __name__ == "__main__":
    serve(_load)
