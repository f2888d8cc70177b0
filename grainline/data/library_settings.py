"""tokenizer_config.json: what AutoTokenizer of the transformers library reads beside a saved tokenizer."""

import json
from pathlib import Path
from typing import Any

from grainline.data.tokenized import TextTokenizer
from grainline.files import write_text


def write_settings(tokenizer: TextTokenizer, folder: Path, *, context: int, pad: int, masked: bool) -> None:
    """Write `tokenizer_config.json` beside what `save` wrote.

    context  longest text of the model; transformers cuts at no other place
    pad      id that fills up texts
    masked   whether the model is told which tokens are padding; one that has learnt to read it must not be
    """
    content = settings(tokenizer, context=context, pad=pad, masked=masked)
    write_text(folder / "tokenizer_config.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def settings(tokenizer: TextTokenizer, *, context: int, pad: int, masked: bool) -> dict[str, Any]:
    """The settings of `write_settings`.

    But for CLIP's the class is the one that takes tokenizer.json as it stands: SiglipTokenizer would read a
    spiece.model, which need not be there, and Siglip2Tokenizer would build its own steps. Special tokens are
    named only where the file has them as such: the library would make one of any other, wherever it stands
    in a text.
    """
    content = json.loads(tokenizer.to_json())
    special = {entry["id"]: entry["content"] for entry in content["added_tokens"] if entry["special"]}
    kind = tokenizer.meta()["kind"]
    roles = {"bos_token": tokenizer.begin, "eos_token": tokenizer.end, "pad_token": pad}
    out: dict[str, Any] = {
        "tokenizer_class": "CLIPTokenizer" if kind == "clip" else "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "right",
        "model_input_names": ["input_ids", "attention_mask"] if masked else ["input_ids"],
        "clean_up_tokenization_spaces": False,
    }
    out |= {role: special[number] for role, number in roles.items() if number in special}
    if kind == "siglip":  # not in the file itself: a reader builds its steps anew
        out["do_lower_case"] = any(
            step["type"] == "Lowercase" for step in content["normalizer"]["normalizers"]
        )
    return out
