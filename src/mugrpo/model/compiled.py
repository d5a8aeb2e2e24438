"""Functions as compiled code, with the numbers of the functions themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_VARIANTS = 64  # of a function, by kind of layer and shape; torch's default is 8
# Fused operations in bf16 round in between as separate ones do. Logprobs that come from both would
# give ratios other than 1.
_OPTIONS: dict[str, Any] = {"emulate_precision_casts": True}
_strict = False


def compiled_code(
    function: Callable[..., Any], *, dynamic: bool | None = None
) -> Callable[..., Any]:
    """Return `function` as compiled code. What turns out not to compile, ever, runs as it is."""
    import torch._dynamo  # it takes a second
    import torch._functorch.config as ahead

    limits, call = torch._dynamo.config, torch.compile(function, dynamic=dynamic, options=_OPTIONS)

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal call
        if limits.recompile_limit < _VARIANTS:  # each of autograd's threads has limits of its own
            limits.recompile_limit = _VARIANTS
        # What fails for the backward pass should fail here, where it can run as it is.
        if not getattr(ahead, "force_non_lazy_backward_lowering", True):
            ahead.force_non_lazy_backward_lowering = True
        try:
            return call(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException:  # not what compiled code raises
            if _strict:
                raise
            call = function  # to fail again takes as long
        return function(*args, **kwargs)

    return run


@contextmanager
def failing() -> Iterator[None]:
    """Within it, code that does not compile raises an error, in autograd's threads, too."""
    global _strict
    _strict = True
    try:
        yield
    finally:
        _strict = False
