"""Generation of the embedded model: `python benchmarks/generation_chain.py --engine NAME`.

A shard of the demo: 256 problems x 8 responses of up to 48 tokens, in batches of 256 as the demo
has them, on both sides. See generation.py for what is compared and what is outside the clock.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from generation import arguments, generation_config, run
from mugrpo.config.tasks import ChainOptions
from mugrpo.tasks.chain import Chain
from side_by_side import ROOT


def main(given: Sequence[str] | None = None) -> Any:
    options = arguments(__doc__, problems=256, peer_batch=256, target=3.0, given=given)
    if not (options.engine or options.engine_option):  # the demo's own engine
        demo = tomllib.loads((ROOT / "configs" / "demo.toml").read_text()).get("engine", {})
        options.engine = demo.pop("name", None)
        options.engine_option = [f"{key}={value}" for key, value in demo.items()]
    config = generation_config(options, 8 if options.tiny else 48)
    problems = Chain(ChainOptions()).train_problems()[: options.problems]
    return run("generation_chain", "Generation, embedded model", config, problems, options)


if __name__ == "__main__":
    main()
