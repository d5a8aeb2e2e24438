"""Generation with the embedded model: `python benchmarks/generation_chain.py --engine NAME`.

The work is a shard of the demo: 256 problems x 8 responses of up to 48 tokens. The default engine
is the demo's, and `model.generate` has batches of 256. See generation.py for what is compared and
what is outside the clock.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from generation import arguments, generation_config, run
from mugrpo.arguments import DEMO
from mugrpo.config.tasks import ChainOptions
from mugrpo.tasks.chain import Chain


def main(argv: Sequence[str] | None = None) -> Any:
    options = arguments(__doc__, problems=256, peer_batch=256, target=3.0, argv=argv)
    if not (options.engine or options.engine_option):  # the demo's engine
        demo = tomllib.loads(DEMO.read_text()).get("engine", {})
        options.engine = demo.pop("name", None)
        options.engine_option = [f"{key}={value}" for key, value in demo.items()]
    config = generation_config(options, 8 if options.tiny else 48)
    problems = Chain(ChainOptions()).train_problems()[: options.problems]
    return run("generation_chain", "Generation, embedded model", config, problems, options)


if __name__ == "__main__":
    main()
