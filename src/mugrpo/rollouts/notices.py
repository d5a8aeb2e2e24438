"""What a tokenizer and a chat template do wrong without failing, said before the first rollout."""

from collections.abc import Collection, Iterator, Sequence

from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Message, Problem
from mugrpo.rollouts.prompts import ASKED, SAID, SHORT, PromptEncoder

_LOOKED_AT = 100  # problems whose messages are searched for keys that are not written


def notices(
    encode: PromptEncoder, stop_ids: Collection[int], problems: Sequence[Problem]
) -> Iterator[str]:
    """Yield sentences on prompts that no model was trained on, and on turns without an end.

    Also on prompts that other programs read otherwise.

    A response ends at one of `stop_ids`. Raises UsageError if the template ends turns with a token
    outside the model's vocabulary.
    """
    if problems:
        yield from _lost_keys(encode, problems[:_LOOKED_AT])
        yield from _ends(encode(problems[0]).tolist(), encode, stop_ids)
        yield from _read_otherwise(encode, problems)
    if encode.options.form == "chat":
        yield from _turns(encode, stop_ids)


def _lost_keys(encode: PromptEncoder, problems: Sequence[Problem]) -> Iterator[str]:
    """Yield which keys of messages the template does not write."""
    lost = set[str]()
    for problem in problems:
        messages = () if isinstance(problem.prompt, str) else problem.prompt
        texts = [(key, one) for message in messages for key, one in message.items()]
        written = encode.text(problem) if messages else ""
        lost |= {key for key, one in texts if isinstance(one, str) and one.strip() not in written}
    if lost := lost - {"role", "content"}:
        keys = ", ".join(map(repr, sorted(lost)))
        yield f"warning: the chat template leaves out {keys} of messages"


def _ends(ids: list[int], encode: PromptEncoder, stop_ids: Collection[int]) -> Iterator[str]:
    token, begin = encode.tokenizer.convert_ids_to_tokens, encode.tokenizer.bos_token_id
    source = "the chat template" if encode.options.form == "chat" else "the data"
    if begin is not None and ids[:2] == [begin, begin]:
        yield (
            f"warning: prompts begin with {token(begin)!r} twice; leave it out of {source}, as the "
            "model was trained with one"
        )
    if ids[-1] in stop_ids:
        yield (
            f"warning: prompts end with {token(ids[-1])!r}, at which a response ends; leave it out "
            f"of {source}"
        )


def _read_otherwise(encode: PromptEncoder, problems: Sequence[Problem]) -> Iterator[str]:
    """Yield how many prompts have other ids in the tokenizer that `tokenizer_at` has replaced."""
    if (other := getattr(encode.tokenizer, "in_place_of", None)) is None:
        return
    texts = [encode.text(problem) for problem in problems]
    bare = (other(text, add_special_tokens=False)["input_ids"] for text in texts)
    if differ := sum(ids != encode.ids_of(text) for ids, text in zip(bare, texts, strict=True)):
        yield (
            f"warning: {differ} of {len(texts)} prompts have other ids in transformers' "
            f"{type(other).__name__}, which AutoTokenizer takes for this model, than in its "
            "tokenizer.json; the run uses tokenizer.json; load its checkpoints with "
            "PreTrainedTokenizerFast, too"
        )


def _turns(encode: PromptEncoder, stop_ids: Collection[int]) -> Iterator[str]:
    """Yield what is wrong with how the template begins and ends a turn of the model."""
    said: Message = {"role": "assistant", "content": SAID}
    try:
        closed, opened = (encode.rendered([ASKED], prompting=p, about=SHORT) for p in (False, True))
        whole = encode.rendered([ASKED, said], prompting=False, about=SHORT)
    except UsageError:  # it takes no such conversation, and the prompts of the data may be others
        return
    before, written, end = whole.rpartition(SAID)
    if not written:
        return
    begin = before.removeprefix(closed).strip() if before.startswith(closed) else ""
    if opened == closed and begin:
        yield (
            "warning: the chat template ignores add_generation_prompt, so prompts end before "
            f"{begin!r}, which begins a turn of the model; write it there in a template of your "
            "own (--prompt.chat_template)"
        )
    ids = encode.checked(encode.ids_of(end), "what the chat template writes after a turn").tolist()
    if end.strip() and not set(ids) & set(stop_ids):
        stops = ", ".join(map(repr, encode.tokenizer.convert_ids_to_tokens(list(stop_ids))))
        tokens = encode.tokenizer.convert_ids_to_tokens(ids)
        special = [one for one in tokens if one in encode.tokenizer.get_added_vocab()]
        remedy = f"--model.eos_token '{special[0]}'" if special else "--prompt.chat_template"
        yield (
            f"warning: the chat template ends a turn with {(special or [end])[0]!r}, which does "
            f"not end a response (that does {stops}), so responses may run on until they are "
            f"truncated; set {remedy}, unless the model was trained to end otherwise"
        )
