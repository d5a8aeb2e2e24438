#!/bin/sh
# transformers 5.23.0: continue_final_message drops the space at the end of what is continued.
#
# Guess (wrong): the rendered prompt ends with the message as it was given.
# Seen: so it does if the template writes the content as it is. If the template trims it, as many do,
# the prompt ends before the space: the model is asked to continue "The answer is", and no error says
# that another prefix was rendered.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0 jinja2==3.1.6
cd "$folder"
cat >look.py <<'PY'
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
asked = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "The answer is "}]


def rendered(content):
    template = "{% for m in messages %}<{{ m.role }}>{{ CONTENT }}</end>{% endfor %}"
    tokenizer.chat_template = template.replace("CONTENT", content)
    options = {"tokenize": False, "continue_final_message": True}
    return tokenizer.apply_chat_template(asked, **options)


plain, trimmed = rendered("m.content"), rendered("m.content | trim")
print(repr(plain), repr(trimmed))
assert plain.endswith("The answer is ")
assert trimmed.endswith("The answer is")
PY
"$folder/venv/bin/python" look.py
