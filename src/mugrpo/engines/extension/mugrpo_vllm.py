"""What mugrpo adds to a vLLM worker: `--worker-extension-cls mugrpo_vllm.TakesWeights`.

This folder is on the PYTHONPATH of vLLM's processes, whose environment may lack mugrpo.
"""

from typing import Any


class TakesWeights:
    """A method of vLLM's workers, called with `collective_rpc("take_weights", args=(path,))`."""

    model_runner: Any
    reload_weights: Any  # vLLM's own

    def take_weights(self, path: str) -> None:
        """Replace the weights with those of the model directory `path`. Keep compiled code.

        `reload_weights` does not see that a tied head shares the embeddings (vLLM 0.32). On a CPU
        the head then computes with packed copies of the old weights, so they are packed again.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.reload_weights(weights_path=path)
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
