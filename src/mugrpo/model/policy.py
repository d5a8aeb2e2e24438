"""The policy: a causal language model, its tokenizer, and how many updates it has received."""

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mugrpo.config.run import ModelOptions
from mugrpo.config.training import LoRAOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model.adapter import Adapter
from mugrpo.model.attention import attending
from mugrpo.model.dtensors import fill, local, moved, tensors_of
from mugrpo.model.files import ModelPart, read_rows, saved_tensors, weights_in_memory, write_weights
from mugrpo.model.half import HalfCopy, halve_frozen
from mugrpo.model.hardware import device, precision_of
from mugrpo.model.host_memory import HostMemory
from mugrpo.model.loading import empty_model, load_model, load_tokenizer, processor_files
from mugrpo.model.memory import keep_freed_memory, out_of_memory_explained
from mugrpo.model.norms import use_short_norms
from mugrpo.model.pretrained import model_path
from mugrpo.model.probe import bound_rows, untrainable
from mugrpo.model.quantized import quantize
from mugrpo.model.rows import body_of
from mugrpo.model.self_test import can_share_prompts
from mugrpo.model.varlen import Kernel
from mugrpo.model.vocabulary import vocabulary_of
from mugrpo.processes.messages import first_line
from mugrpo.processes.ranks import ALONE, Ranks


class Policy:
    """A model and its tokenizer in memory.

    `update` is the number of updates that its weights have received. `model` has them in fp32,
    whatever the precision of the arithmetic; forward passes go through `working()`. Dropout is
    always off, because the distribution that is optimized must be the one that was sampled from.
    With an `adapter`, the model has it inside, and only the adapter is trained, saved and loaded.
    Raises UsageError if the model's logits cannot be computed from its hidden states.
    """

    def __init__(
        self, model: Any, tokenizer: Any, options: ModelOptions, adapter: Adapter | None = None
    ) -> None:
        self.model = model
        self.adapter = adapter
        self.tokenizer = tokenizer
        self.precision = precision_of(options)
        self.copies = self.precision == "bf16"  # whether forward passes go through a copy in bf16
        self.update = 0
        self.can_share_prompts: bool | None = None  # not tried yet
        self.kernel: Kernel | None = None  # of attention without masks, if the trainer has tried it
        self.compiled = False  # whether updates run compiled code, if the trainer has tried it
        self.device: torch.device = model.device  # of its forward passes
        self.ranks: Ranks = ALONE  # the ranks that split the weights
        self.compute: nn.Module | None = None  # from ids to logprobs, if ranks split the model
        self.files = 1  # that a saved model has
        self.shard = (0, 1)  # this rank's shard of the weights, and the number of shards
        size: int = model.get_input_embeddings().weight.shape[0]
        generation_config = getattr(model, "generation_config", None)
        self.vocabulary = vocabulary_of(size, tokenizer, generation_config, options)
        self.vocab_size, self.stop_ids = self.vocabulary.size, self.vocabulary.stop_ids
        for config in (generation_config, model.config.get_text_config()):
            if config is not None:  # what is saved stops where responses stopped
                config.eos_token_id = self.stop_ids[0] if len(self.stop_ids) == 1 else self.stop_ids
        self.processor_files: list[Path] = []  # of a model that also reads images, to save with it
        pad_id = tokenizer.pad_token_id
        padded = pad_id is not None and pad_id < self.vocab_size
        self.pad_id: int = pad_id if padded else tokenizer.eos_token_id
        if model.get_output_embeddings() is None or body_of(model) is model:
            raise UsageError(f"{options.path} has no head of its own; train another model")
        bound_rows(self.model)
        _turn_off_dropout(self.model)
        if options.gradient_checkpointing:
            checkpoint_activations(self.model)
        self.model.train(options.gradient_checkpointing)
        self.waking_remedy = "free GPU memory"  # what to do if it cannot wake
        self.asleep = False  # whether the weights are in host memory, to leave the GPU to engines
        self.host = HostMemory()  # of weights that sleep or are saved
        self.version = 0  # of the weights in `model`, counted in this process
        self._half: HalfCopy | None = None
        self._half_version = 0

    def working(self) -> Any:
        """Return the model of forward passes: `model`, or a copy of it in bf16 (see `HalfCopy`).

        If ranks split the model, FSDP makes that copy block by block.
        """
        if not self.copies or self.compute is not None:
            return self.model
        if self._half is None:
            self._half = HalfCopy(self.model)
        elif self._half_version != self.version:
            self._half.renew()
        self._half_version = self.version
        return self._half.working

    def weights_changed(self) -> None:
        """Note that `model` has new weights: copies are old. Whoever changes them calls this."""
        self.version += 1

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[Any]:
        """Yield the model of forward passes, which is in evaluation mode within the block.

        In training mode, gradient checkpointing rules out a cache.
        """
        model = self.working()
        was_training = model.training
        model.eval()
        try:
            yield model
        finally:
            model.train(was_training)

    def nonfinite_parameter(self) -> str | None:
        """Return the name of a parameter that contains NaN or inf, or None."""
        for name, parameter in self.model.named_parameters():
            if not torch.isfinite(local(parameter)).all():
                return str(name)
        return None

    def weights(self, *, copied: bool, dtype: torch.dtype | None = None) -> ModelPart:
        """Return the weights that this rank writes, see `files.weights_in_memory`."""
        own: int | None = self.shard[0]
        if self.files == 1:
            own = 0 if self.ranks.first else None
        tensors = self.adapter.tensors() if self.adapter else saved_tensors(self.model)
        host = self.host if copied else None
        return weights_in_memory(tensors, self.files, own=own, host=host, dtype=dtype)

    def save(
        self, folder: Path, weights: ModelPart | None = None, dtype: torch.dtype | None = None
    ) -> dict[str, str]:
        """Write the model, or its adapter, and the tokenizer to `folder` in Hugging Face format.

        With them goes what serving needs: the ids that end a response, and `processor_files`.

        If ranks split the model, all must call this, and each writes its part: `weights`, by
        default those of now, rounded to `dtype`. Return what `write_weights` does.
        """
        weights = self.weights(copied=False, dtype=dtype) if weights is None else weights
        sums: dict[str, str] = {}
        if self.adapter is None:
            sums = write_weights(self.model, weights, self.ranks, folder)
        elif self.ranks.first:
            self.adapter.write(weights.tensors, folder)
            self.model.generation_config.save_pretrained(folder)
        if self.ranks.first:
            self.tokenizer.save_pretrained(folder)
            for file in self.processor_files:
                shutil.copyfile(file, folder / file.name)
        return sums

    def load_weights(self, path: str | Path, update: int) -> None:
        """Load the weights of a model of the same architecture from a directory or a hub id.

        A policy with an adapter loads an adapter, or begins a new one if `path` is its base model.

        If ranks split the model, all of them must call this. Each reads its own rows of a model
        that a policy has saved; of others, the first rank reads all. Raises UsageError if the model
        cannot be loaded or has another architecture.
        """
        self.wake()  # a checkpoint may still be written from where the weights sleep
        if self.adapter is not None:
            self.adapter.load(path)
        elif self.compute is None:
            try:
                self.model.load_state_dict(load_model(path).state_dict())
            except RuntimeError as error:
                raise _other_architecture(path, first_line(error)) from None
        elif not read_rows(self.model, Path(path)):
            source = tensors_of(load_model(path)) if self.ranks.first else None
            if source is not None and _shapes(source) != _shapes(tensors_of(self.model)):
                raise _other_architecture(path, "its weights have other names or shapes")
            fill(self.model, source, self.ranks)
        self.update = update
        self.weights_changed()

    @property
    def on_gpu(self) -> bool:
        """Whether its forward passes run on a GPU."""
        return self.device.type == "cuda"

    def sleep(self) -> None:
        """Move the weights from the GPU to host memory, and drop the copy in bf16."""
        if self.on_gpu and not self.asleep:
            self.move(torch.device("cpu"))
            self.asleep = True

    def wake(self) -> None:
        """Move the weights back to the GPU, before a forward pass. Raises RunStopped if it is full.

        Host memory that something else still holds, such as a `Snapshot`, stays as it is.
        """
        if self.asleep:
            with out_of_memory_explained("moving the weights back to the GPU", self.waking_remedy):
                self.move(self.device)
            self.asleep = False

    def move(self, device: torch.device) -> None:
        """Move the weights to `device`, and drop the copy in bf16: `working` makes another.

        FSDP notices only if the whole module that it splits is moved. If a module below is, such
        as `model`, forward passes go on to gather the weights from before.
        """
        rooms = None
        if device.type == "cpu":
            rooms = self.host.rooms(local(t).nbytes for t in tensors_of(self.model).values())
        (self.compute or self.model)._apply(lambda tensor: moved(tensor, device, rooms))
        self._half = None
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _other_architecture(path: str | Path, reason: str) -> UsageError:
    return UsageError(f"{path} holds a model of another architecture ({reason})")


def checkpoint_activations(model: Any) -> None:
    """Make the Hugging Face model `model` recompute its activations in the backward pass.

    The backward pass attends as the forward pass did, see `attending`.
    """

    def contexts() -> tuple[contextlib.AbstractContextManager[Any], ...]:
        now = model.config._attn_implementation
        return contextlib.nullcontext(), attending(model.config, now)

    with warnings.catch_warnings():  # deprecated, but older versions lack the new name
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})


def load_policy(
    options: ModelOptions,
    notify: Callable[[str], None] = lambda _: None,
    ranks: Ranks = ALONE,
    *,
    lora: LoRAOptions | None = None,
    seed: int = 0,
    trained: bool = True,
) -> Policy:
    """Return the policy at update 0, with an adapter drawn with `seed` if `lora` asks for one.

    If there are several `ranks`, only the first reads weights, into host memory. On the others the
    weights are arbitrary until `fsdp.distribute` fills them. On a CPU, the process keeps freed
    memory from here on (`keep_freed_memory`). `notify` reports a router's loss that is left out,
    and a router that an adapter trains. Under an adapter, a model in bf16 has its own weights only
    in bf16, and whether it can share prompts is tried before, as that takes fp32. A policy that is
    not `trained`, as that of an engine process, is not tried, and in bf16 it has no weights in
    fp32. Raises UsageError if model or tokenizer cannot be loaded, if logprobs would not be the
    model's own (`untrainable`), and as `put_adapter` does.
    """
    path, place = model_path(options), device()
    model = load_model(path) if ranks.first else None
    names = ranks.from_first(None if model is None else set(tensors_of(model)))
    if model is None:
        model = empty_model(path, names)
    tokenizer = load_tokenizer(options)
    adapter = Adapter(model, lora, path, seed) if lora and lora.rank else None
    if ranks.size == 1:  # safetensors may return unaligned memory, and resume must be exact
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
    use_short_norms(model)
    if place == "cpu":
        keep_freed_memory()
    else:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for each shape, for 0.4 s
    shares: bool | None = None
    halves = precision_of(options) == "bf16" and bool(adapter or not trained)
    if ranks.size == 1 and not halves and not (lora and lora.quantize):  # `quantize` sends layers
        model.to(place)
    if fault := ranks.from_first(untrainable(model, path) if ranks.first and trained else None):
        raise UsageError(fault)
    if halves and adapter and trained:
        shares = ranks.from_first(ranks.first and can_share_prompts(model))
    quantize(model, lora, place)
    if halves:
        _halve(model, adapter)
    policy = Policy(model.to(place) if ranks.size == 1 else model, tokenizer, options, adapter)
    policy.ranks, policy.device = ranks, torch.device(place)
    policy.can_share_prompts = shares
    policy.copies &= not halves or adapter is not None
    policy.processor_files = processor_files(path)
    for sentence in _notices(model, adapter):
        notify(sentence)
    return policy


def _halve(model: Any, adapter: Adapter | None) -> None:
    """Round what is not trained to bf16: without an adapter, all of it."""
    if adapter is None:
        model.requires_grad_(False)
    halve_frozen(model)


def _notices(model: Any, adapter: Adapter | None) -> Iterator[str]:
    """Yield what happens to the router of a mixture of experts."""
    if coefficient := getattr(model.config.get_text_config(), "router_aux_loss_coef", None):
        yield (
            f"the router's auxiliary loss (router_aux_loss_coef = {coefficient}) is left out: "
            "updates follow the objective alone"
        )
    if adapter and adapter.parameters:
        yield f"the adapter also trains routers and experts: {', '.join(adapter.parameters)}"


def _turn_off_dropout(model: nn.Module) -> None:
    """Set every dropout rate to 0, including rates that modules store as plain numbers."""
    for module in model.modules():
        rates = [n for n, v in vars(module).items() if "drop" in n and isinstance(v, float)]
        for name in rates:
            setattr(module, name, 0.0)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
