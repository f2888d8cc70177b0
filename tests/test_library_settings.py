"""A converted folder in the hands of the transformers library alone: its tokenizer, processor and model."""

import json
import pickle
import shutil
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
from vocabularies import CORPUS, PROBES, gemma_folder, siglip_folder

from grainline.data.captions import clean
from grainline.data.tokenizers.library_tokenizer import settings
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer, read_tokenizer
from grainline.encoders.pretrained import load_pretrained
from grainline.encoders.pretrained.convert import to_hugging_face
from grainline.errors import UserError
from grainline.export.huggingface import convert
from grainline.export.parity import parity
from grainline.loading import load

TEXTS = [*CORPUS[:5], PROBES[0], PROBES[3], PROBES[4], '" A dog " is what it says.', "..."]
KINDS = ["clip", "siglip", "siglip2"]


def trained_clip(folder: Path) -> Path:
    Tokenizer.train(CORPUS, vocab=600).save(folder)
    return folder


def checkpoint(kind: str, folder: Path) -> Path:
    """A small model with random weights and the kind of tokenizer that it has on the hub."""
    make = {"clip": trained_clip, "siglip": siglip_folder, "siglip2": gemma_folder}[kind]
    read = load_tokenizer(make(folder))
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
    mine = load(source)
    read = transformers.AutoTokenizer.from_pretrained(out)
    ids = mine.tokenizer.encode(TEXTS, 14).ids
    assert read(TEXTS, truncation=True)["input_ids"] == ids
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    images = [Image.fromarray(x) for x in pixels]
    processor = transformers.AutoProcessor.from_pretrained(out)
    given = processor(text=TEXTS, images=images, padding="max_length", truncation=True, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(out).eval()
    assert given["input_ids"].shape == (len(TEXTS), 14)
    assert ("attention_mask" in given) == (kind == "clip"), "SigLIP has learnt to read its padding"
    found = model(**given)
    cosine = nn.functional.normalize(found.image_embeds) @ nn.functional.normalize(found.text_embeds).T
    torch.testing.assert_close(mine.score(images, TEXTS), cosine, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_library_saves_of_a_converted_folder_is_read_by_us(kind: str, tmp_path: Path) -> None:
    source, out = checkpoint(kind, tmp_path / "in"), tmp_path / "out"
    convert(str(source), out)
    transformers.AutoTokenizer.from_pretrained(out).save_pretrained(tmp_path / "again")
    shutil.copy(out / "config.json", tmp_path / "again")
    ours, again = load_tokenizer(out), load_tokenizer(tmp_path / "again")
    assert again.encode(PROBES, 14) == ours.encode(PROBES, 14)
    assert again.meta() == ours.meta()


def test_capital_letters_stay_where_the_checkpoint_reads_them(tmp_path: Path) -> None:
    folder = siglip_folder(tmp_path, json=False, do_lower_case=False)
    assert settings(load_tokenizer(folder), context=14, pad=1, masked=False)["do_lower_case"] is False
    assert settings(load_tokenizer(siglip_folder(tmp_path)), context=14, pad=1, masked=False)["do_lower_case"]


def test_a_piece_of_texts_does_not_become_a_special_token(tmp_path: Path) -> None:
    read = load_tokenizer(trained_clip(tmp_path))
    assert "pad_token" not in settings(read, context=14, pad=0, masked=True)
    assert settings(read, context=14, pad=read.vocab - 1, masked=True)["pad_token"] == "<|endoftext|>"


def test_padding_that_only_our_description_knows_is_written_into_the_config(tmp_path: Path) -> None:
    found = load_pretrained(checkpoint("siglip", tmp_path / "in"))
    assert found.text is not None
    assert found.architecture["config"]["text_config"]["pad_token_id"] == found.text.pad == 1
    found.text.pad = 5
    other = found._replace(architecture=found.architecture | {"pad": 5})
    to_hugging_face(other, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]["pad_token_id"] == 5
    again = load_pretrained(tmp_path / "out")
    assert again.text is not None
    assert again.text.pad == again.architecture["pad"] == 5
    assert max(parity(other, tmp_path / "out")) < 1e-6


# Tokens that were added to the tokenizer of a CLIP

ADDED: dict[str, list[Any]] = {
    "plain": ["<sks0>"],
    "several": ["<sks0>", "<sks1>", "a<sks0>"],
    "special": [AddedToken("<SKS>", special=True)],
    "raw": [AddedToken("<SKS>", normalized=False)],
    "spaces": [" <sks> "],
    "stripped": [AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True)],
    "word": [AddedToken("sks", single_word=True)],
    "known": ["dog"],
}
FORMS = ["tokenizer.json", "added_tokens.json", "decoder"]


def added(folder: Path, tokens: list[Any], form: str = "tokenizer.json", **changes: Any) -> Any:
    """A CLIP with added tokens in a folder of one of the forms; the library's model."""
    plain = trained_clip(folder / "plain")
    library = transformers.CLIPTokenizer.from_pretrained(plain)
    library.add_tokens(tokens)
    size, end = len(library), library.eos_token_id
    library.save_pretrained(folder)
    if form == "added_tokens.json":
        content = json.loads((folder / "tokenizer.json").read_text())
        (folder / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
        (folder / "merges.txt").write_text("\n".join(map(" ".join, content["model"]["merges"])))
        names = {x["content"]: x["id"] for x in content["added_tokens"]}
        (folder / "added_tokens.json").write_text(json.dumps(names))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    elif form == "decoder":
        content = json.loads((folder / "tokenizer.json").read_text())
        decoder = {str(x.pop("id")): x for x in content["added_tokens"]}
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(
            json.dumps(settings | {"added_tokens_decoder": decoder})
        )
        (folder / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": []}))
    torch.manual_seed(0)
    ids = {"vocab_size": size, "bos_token_id": library.bos_token_id, "eos_token_id": end}
    model = checkpoints.clip(**ids | {"max_position_embeddings": 14} | changes)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ADDED)
def test_added_tokens_are_read_as_the_library_does(case: str, form: str, tmp_path: Path) -> None:
    model = added(tmp_path, ADDED[case], form)
    library = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    names = [str(token) for token in ADDED[case]]
    texts = ["a dog", *names, *(f"a {name} dog, b{name}{name}x" for name in names), "A<SKS>b sks <sks>"]
    texts = [clean(text) for text in texts]
    mine = load(tmp_path)
    wanted = library(texts, truncation=True, max_length=14)["input_ids"]
    assert {library.convert_tokens_to_ids(name) for name in names} <= {i for row in wanted for i in row}
    assert mine.tokenizer.encode(texts, 14).ids == wanted
    given = library(texts, padding=True, truncation=True, max_length=14, return_tensors="pt")
    theirs = nn.functional.normalize(model.get_text_features(**given).pooler_output)
    torch.testing.assert_close(mine.encode(texts=texts).vector, theirs, rtol=0, atol=1e-5)
    mine.tokenizer.save(tmp_path / "again")
    again = pickle.loads(pickle.dumps(read_tokenizer(tmp_path / "again")))
    assert again.encode(texts, 14) == mine.tokenizer.encode(texts, 14)
    assert again.decode(again.encode(["a dog"], 14).ids[0]) == "a dog"


def test_convert_keeps_added_tokens_and_would_see_them_go(tmp_path: Path) -> None:
    added(tmp_path / "in", ["<sks0>", "<sks1>"])
    source, out = tmp_path / "in", tmp_path / "out"
    assert max(convert(str(source), out)) < 1e-6
    assert transformers.CLIPTokenizer.from_pretrained(out).tokenize("a <sks1> dog")[1] == "<sks1>"
    towers, tokenizer = load_pretrained(source), load_tokenizer(source)
    Tokenizer.train(CORPUS, vocab=600).save(out)
    for name in ("tokenizer_config.json", "tokenizer_meta.json"):
        (out / name).unlink()
    assert parity(towers, out, tokenizer, source).text > 1e-3
    with pytest.raises(UserError, match="has added tokens, and readers of a state dict take the highest id"):
        convert(str(source), tmp_path / "x" / "quickgelu.safetensors")


def test_other_settings_of_images_are_seen_after_writing(tmp_path: Path) -> None:
    source = checkpoint("clip", tmp_path / "in")
    out = tmp_path / "out"
    convert(str(source), out)
    file = out / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_normalize": False}))
    assert parity(load_pretrained(source), out, load_tokenizer(source)).image > 1e-3


def test_added_tokens_that_cannot_be_read_right_are_refused(tmp_path: Path) -> None:
    added(tmp_path / "small", ["<sks0>"], vocab_size=Tokenizer.train(CORPUS, vocab=600).vocab)
    added(tmp_path / "old", ["<sks0>"], eos_token_id=2)
    checkpoint("siglip", tmp_path / "siglip")
    library = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "siglip" / "tokenizer.json"))
    library.add_tokens(["<sks0>"])
    library.backend_tokenizer.save(str(tmp_path / "siglip" / "tokenizer.json"))
    (tmp_path / "bert").mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(300))]
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "bert" / "added_tokens.json").write_text('{"<sks0>": 305}')
    for name, message in (
        ("small", r"has \d+ tokens, the model \d+"),
        ("old", "sums up a text at its highest id .*added tokens have higher ids"),
        ("siglip", "no text gives the tokens that were added to .*: <sks0>"),
        ("bert", "has no <sks0>, which files beside it add"),
    ):
        with pytest.raises(UserError, match=message):
            load_tokenizer(tmp_path / name) if name in ("bert", "siglip") else load(tmp_path / name)
