"""A converted folder in the hands of the transformers library alone: its tokenizer, processor and model."""

import json
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import nn
from transformers import AddedToken
from vocabularies import CORPUS, PROBES, folder_of

from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.encoders.pretrained import load_pretrained
from grainline.encoders.pretrained.convert import to_hugging_face
from grainline.export.huggingface import _writer, convert, parity
from grainline.loading import load

TEXTS = [*CORPUS[:5], PROBES[0], PROBES[3], PROBES[4], '" A dog " is what it says.', "..."]
KINDS = ["clip", "siglip", "siglip2"]


def trained_clip(folder: Path) -> Path:
    Tokenizer.train(CORPUS, vocab=600).save(folder)
    return folder


def checkpoint(kind: str, folder: Path) -> Path:
    """A small model with random weights and the kind of tokenizer that it has on the hub."""
    read = load_tokenizer(trained_clip(folder) if kind == "clip" else folder_of(kind, folder))
    torch.manual_seed(0)
    changes: dict[str, Any] = {"vocab_size": read.vocab, "max_position_embeddings": 14}
    if kind == "clip":
        checkpoints.clip(**changes, bos_token_id=read.begin, eos_token_id=read.end).save_pretrained(folder)
    else:
        checkpoints.siglip(**changes).save_pretrained(folder)
    return folder


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_folder_gives_the_library_our_ids_and_our_cosines(kind: str, tmp_path: Path) -> None:
    source, out = checkpoint(kind, tmp_path / "in"), tmp_path / "out"
    convert(str(source), out)
    own = load(source)
    read = transformers.AutoTokenizer.from_pretrained(out)
    ids = own.tokenizer.encode(TEXTS, 14).ids
    assert read(TEXTS, truncation=True)["input_ids"] == ids
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    images = [Image.fromarray(x) for x in pixels]
    processor = transformers.AutoProcessor.from_pretrained(out)
    given = processor(text=TEXTS, images=images, padding="max_length", truncation=True, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(out).eval()
    assert given["input_ids"].shape == (len(TEXTS), 14)
    assert ("attention_mask" in given) == (kind == "clip"), "SigLIP has learnt to read its padding"
    result = model(**given)
    cosine = nn.functional.normalize(result.image_embeds) @ nn.functional.normalize(result.text_embeds).T
    torch.testing.assert_close(own.score(images, TEXTS), cosine, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("pad", "name"), [(0, None), (599, "<|endoftext|>")])
def test_a_piece_of_texts_does_not_become_a_special_token(pad: int, name: str | None, tmp_path: Path) -> None:
    loaded = load_pretrained(checkpoint("clip", tmp_path / "in"))
    other = loaded._replace(architecture=loaded.architecture | {"pad": pad})
    _writer(other, load_tokenizer(tmp_path / "in"))(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written.get("pad_token") == name
    assert written["tokenizer_class"] == "CLIPTokenizer"


def test_padding_that_only_our_description_knows_is_written_into_the_config(tmp_path: Path) -> None:
    output = load_pretrained(checkpoint("siglip", tmp_path / "in"))
    assert output.text is not None
    assert output.architecture["config"]["text_config"]["pad_token_id"] == output.text.pad == 1
    output.text.pad = 5
    other = output._replace(architecture=output.architecture | {"pad": 5})
    to_hugging_face(other, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]["pad_token_id"] == 5
    again = load_pretrained(tmp_path / "out")
    assert again.text is not None
    assert again.text.pad == again.architecture["pad"] == 5
    assert max(parity(other, tmp_path / "out")) < 1e-6


# Tokens that were added to a tokenizer


def added(folder: Path, *tokens: Any, form: str = "tokenizer.json", **special: Any) -> Path:
    """The tokenizer of a CLIP with added tokens, as the library saves it or in two older forms."""
    library = transformers.CLIPTokenizer.from_pretrained(trained_clip(folder / "plain"), **special)
    library.add_tokens(list(tokens))
    library.save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    entries, config = content["added_tokens"], folder / "tokenizer_config.json"
    if form == "added_tokens.json":
        (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
        (folder / "merges.txt").write_text("\n".join(map(" ".join, content["model"]["merges"])))
        (folder / form).write_text(json.dumps({entry["content"]: entry["id"] for entry in entries}))
        for file in (folder / "tokenizer.json", config):
            file.unlink()
    elif form == "decoder":
        config.write_text(json.dumps({"added_tokens_decoder": {str(x.pop("id")): x for x in entries}}))
        (folder / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": []}))
    return folder


@pytest.mark.parametrize("form", ["tokenizer.json", "added_tokens.json", "decoder"])
@pytest.mark.parametrize(
    "tokens", [("a<sks0>", " <sks1> "), (AddedToken("<S>", special=True, lstrip=True),), ("dog",)]
)
def test_added_tokens_are_read_and_written_as_the_library_reads_them(
    tokens: Any, form: str, tmp_path: Path
) -> None:
    folder = added(tmp_path / "in", *tokens, form=form)
    if not (folder / "tokenizer_config.json").is_file():
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    texts = [*TEXTS, *(f"a {token}dog" for token in tokens)]
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.encode(texts, 14).ids == theirs(texts, truncation=True, max_length=14)["input_ids"]
    ids = {"vocab_size": ours.vocab, "bos_token_id": ours.begin, "eos_token_id": ours.end}
    checkpoints.clip(**ids, max_position_embeddings=14).save_pretrained(folder)
    convert(str(folder), tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again(texts, truncation=True)["input_ids"] == ours.encode(texts, 14).ids
    assert load(tmp_path / "out").tokenizer.encode(texts, 14) == ours.encode(texts, 14)


# What convert would notice


@pytest.mark.parametrize(
    ("file", "change", "side"),
    [
        ("preprocessor_config.json", {"do_normalize": False}, "image"),
        ("preprocessor_config.json", {"do_center_crop": False, "size": {"height": 16, "width": 16}}, "image"),
        ("tokenizer.json", {}, "text"),
    ],
)
def test_parity_reads_what_was_written_from_text_and_image_on(
    file: str, change: dict[str, Any], side: str, tmp_path: Path
) -> None:
    source, out = checkpoint("clip", tmp_path / "in"), tmp_path / "out"
    flags = {"do_rescale": False, "image_mean": [9, 8, 7], "size": {"shortest_edge": 20}, "crop_size": 16}
    (source / "preprocessor_config.json").write_text(json.dumps(flags | {"resample": 2}))
    assert max(convert(str(source), out)) < 1e-5
    content = json.loads((out / file).read_text())
    if side == "text":  # without a single merge
        change = {"model": content["model"] | {"merges": []}}
    (out / file).write_text(json.dumps(content | change))
    towers, tokenizer = load_pretrained(source), load_tokenizer(source)
    moved = parity(towers, out, tokenizer)._asdict()
    assert moved.pop(side) > 1e-3
    assert max(moved.values()) < 1e-5
