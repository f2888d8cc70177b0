"""Tokenizers of checkpoints against the transformers library, and SigLIP's against a slow sentencepiece."""
# ruff: noqa: RUF001 (typographic marks are what is tested)

import hashlib
import importlib.metadata
import importlib.util
import json
import pickle
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import tokenizers
import torch
import transformers
import vocabularies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import call, recipe
from transformers import AddedToken
from vocabularies import CORPUS, KINDS, PROBES, Sentencepiece, folder_of, siglip_text, write

import grainline
from grainline.data.texts import encode_parts
from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer, read_tokenizer
from grainline.encoders.pretrained import load_pretrained
from grainline.errors import UserError
from grainline.types import texts_of

NASTY = [*PROBES, *CORPUS[:5], "a <sks0>dog <S> x", "</s> <mask> [MASK]", "Σ ΣΟΦΟΣ", " lead", "x" * 300]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("tokenizers")
    added = "<sks0>", AddedToken("<S>", special=True, lstrip=True)
    return {kind: folder_of(kind, home / kind, *added) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Any:
    return load_tokenizer(folders[request.param])


def slow_siglip(text: str, lower: bool = True) -> list[int]:
    slow = Sentencepiece()
    return [*slow.ids(slow.encode(siglip_text(text, lower))), 1]


def ids_of(library: Any, texts: list[str], context: int) -> list[list[int]]:
    result: list[list[int]] = library(texts, truncation=True, max_length=context).input_ids
    return result


# The same ids as others


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"siglip"}))
def test_ids_are_those_of_the_library(kind: str, folders: dict[str, Path]) -> None:
    ours, theirs = load_tokenizer(folders[kind]), transformers.AutoTokenizer.from_pretrained(folders[kind])
    for context in (1000, 9):
        assert ours.encode(NASTY, context).ids == ids_of(theirs, NASTY, context)
    assert ours.vocab == len(theirs)
    assert ours.pieces(ours.encode(["a <sks0>dog"], 20).ids[0]).count("<sks0>") == 1


FRAMES = {
    "bert": ("[CLS]", "[SEP]", "[MASK]"),
    "mpnet": ("<s>", "</s>", "<mask>"),
    "roberta": ("<s>", "</s>", "<mask>"),
    "xlm-r": ("<s>", "</s>", "<mask>"),
    "deberta": ("[CLS]", "[SEP]", "[MASK]"),
    "clip": ("<|startoftext|>", "<|endoftext|>", None),
    "t5": (None, "</s>", None),
    "siglip": (None, "</s>", None),
    "siglip2": (None, "<eos>", None),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_tokens_around_a_text_and_the_mask_are_those_of_the_kind(kind: str, folders: dict[str, Path]) -> None:
    loaded = load_tokenizer(folders[kind])
    mask = loaded.mask_tokens and loaded.mask_tokens.mask
    names = [None if x is None else loaded.pieces([x])[0] for x in (loaded.begin, loaded.end, mask)]
    assert tuple(names) == FRAMES[kind]
    assert loaded.around == sum(x is not None for x in FRAMES[kind][:2])


@pytest.mark.parametrize("lower", [True, False])
def test_siglip_is_sentencepiece_of_the_canonical_text(lower: bool, tmp_path: Path) -> None:
    ours = load_tokenizer(vocabularies.siglip_folder(tmp_path, do_lower_case=lower))
    for text in [*PROBES, *CORPUS, '"A dog" runs', '" A dog " runs', ". . A dog", "- ", '" "', "Σ ΣΟΦΟΣ aΣ"]:
        assert ours.encode([text], 500).ids[0] == slow_siglip(text, lower), text
    assert ours.vocab == len(vocabularies.pieces())


def module_of(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ODD = st.characters(max_codepoint=0x052F, exclude_categories=["Cs", "Cn", "Mn", "Mc", "Me", "Cf"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("aodg s'’.&;#1éΣ²´K_-\n") | ODD, max_size=25))
def test_any_text_has_spans_inside_itself(tokenizer: TextTokenizer, text: str) -> None:
    ids, spans = tokenizer.encode([text], 300).ids[0], tokenizer.spans(text, 300)
    assert len(spans) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    assert all(text[start:end].strip() == text[start:end] for start, end in spans)


# Where a folder says more than its class obeys, or another class than its training


def test_siglip2_that_is_called_gemma_is_lowered_with_a_warning(tmp_path: Path) -> None:
    folder = folder_of("gemma", tmp_path)
    capitals = load_tokenizer(folder).encode(["A Dog"], 9)
    write(folder, config_json={"model_type": "siglip"})
    with pytest.warns(UserWarning, match="names GemmaTokenizer, which keeps capitals: Siglip2Tokenizer is"):
        output = load_tokenizer(folder)
    assert output.encode(["A Dog"], 9) == output.encode(["a dog"], 9) != capitals


@pytest.mark.parametrize("how", ["whitespace", "lower", "canonicalize"])
def test_open_clips_cleaning_is_that_of_open_clip(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        files = importlib.metadata.files("open_clip_torch") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("open_clip_torch is not installed")
    place = next(Path(str(x.locate())) for x in files if str(x) == "open_clip/tokenizer.py")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    cleaning = module_of(place, "open_clip_tokenizer").get_clean_fn(how)
    folder = folder_of("xlm-r", tmp_path)
    text = {"hf_tokenizer_name": "x", "tokenizer_kwargs": {"clean": how}}
    write(folder, open_clip_config_json={"model_cfg": {"text_cfg": text}})
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    texts = [*PROBES, *CORPUS, "a_b -- C.", "ΣΟΦΟΣ"]
    assert ours.encode(texts, 300).ids == ids_of(theirs, [cleaning(text) for text in texts], 300)
    ours.save(tmp_path / "saved")
    assert read_tokenizer(tmp_path / "saved").encode(texts, 300) == ours.encode(texts, 300)


def test_sentence_transformers_may_lower_texts(tmp_path: Path) -> None:
    folder = folder_of("cased", tmp_path)
    plain = load_tokenizer(folder).encode(["THE dog"], 20)
    write(folder, sentence_bert_config_json={"do_lower_case": True})
    outcome = load_tokenizer(folder)
    assert outcome.encode(["THE dog"], 20) == outcome.encode(["the dog"], 20) != plain


# What all kinds do alike


def test_long_texts_are_cut_and_counted_and_keep_their_end(tokenizer: TextTokenizer) -> None:
    text = "the dog runs over the sand"
    whole, short = tokenizer.encode([text, "a"], 100).ids
    size, last = len(whole), len(tokenizer.suffix)
    for context in range(tokenizer.around + 1, size + 3):
        ids, lost = tokenizer.encode([text, "a"], context)
        assert ids[0] == ([*whole[: context - last], *tokenizer.suffix] if context < size else whole)
        assert lost == [max(size - context, 0), max(len(short) - context, 0)]


def fold(text: str) -> str:
    """Small letters without accents."""
    return "".join(x for x in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(x))


def test_spans_say_where_tokens_stand_in_the_text_of_the_user(tokenizer: TextTokenizer) -> None:
    text = "- The  dogs sat\n on the wet sand, İx and a brown   bag."
    ids, spans = tokenizer.encode([text], 100).ids[0], tokenizer.spans(text, 100)
    assert tokenizer.spans(text, 9)[: 9 - len(tokenizer.suffix)] == spans[: 9 - len(tokenizer.suffix)]
    pieces = tokenizer.pieces(ids)
    for piece, (start, end) in zip(pieces, spans, strict=True):
        letters = piece.removeprefix("##").removesuffix("</w>").strip("▁ĠĊ")
        if letters.isascii() and letters.isalpha():
            said = fold("".join(text[start:end].split())).strip("-,.")
            assert said.startswith(fold(letters)), (piece, text[start:end])
    assert spans[-1 if tokenizer.suffix else 0] in [(len(text), len(text)), (0, 1)]
    assert tokenizer.spans("", 100) == [(0, 0)] * tokenizer.around


def test_pickling_saving_and_loading_change_nothing(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "a")
    for other in [pickle.loads(pickle.dumps(tokenizer)), read_tokenizer(tmp_path / "a")]:
        assert other.encode(NASTY, 50) == tokenizer.encode(NASTY, 50)
        assert other.spans(PROBES[2], 50) == tokenizer.spans(PROBES[2], 50)
        assert other.to_json() == tokenizer.to_json()
        assert (other.meta(), other.settings) == (tokenizer.meta(), tokenizer.settings)
        assert other.mask_tokens == tokenizer.mask_tokens
    read_tokenizer(tmp_path / "a").save(tmp_path / "b")
    for name in ("tokenizer.json", "tokenizer_meta.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    meta = json.loads((tmp_path / "a" / "tokenizer_meta.json").read_text())
    content = (tmp_path / "a" / "tokenizer.json").read_bytes()
    frame = {"vocab": tokenizer.vocab, "begin": tokenizer.begin, "end": tokenizer.end}
    assert meta == {"kind": "transformers", **frame, "sha256": hashlib.sha256(content).hexdigest()}


def test_other_libraries_read_the_saved_folder(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    ids = tokenizer.encode(NASTY, 1000).ids
    foreign = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [foreign.encode(text).ids for text in NASTY] == ids
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(NASTY).input_ids == ids
    (tmp_path / "tokenizer_meta.json").unlink()
    assert load_tokenizer(tmp_path).encode(NASTY, 1000).ids == ids


# From strings to vectors


def model_of(kind: str, vocab: int) -> Any:
    """A small model with random weights that reads ids of a tokenizer."""
    text = checkpoints.TEXT | {"vocab_size": vocab}
    if kind == "bert":
        return checkpoints.shaken(transformers.BertModel(transformers.BertConfig(**text)))
    text |= {"max_position_embeddings": 14, "projection_size": 64, "pad_token_id": 1}
    config = transformers.SiglipConfig(vision_config=checkpoints.IMAGE, text_config=text)
    return checkpoints.shaken(transformers.SiglipModel(config))


@torch.no_grad()
@pytest.mark.parametrize(("kind", "pad"), [("bert", 0), ("siglip2", 0), ("siglip", 1)])
def test_strings_give_the_vectors_of_the_library(kind: str, pad: int, tmp_path: Path) -> None:
    folder, texts = folder_of(kind, tmp_path), [*PROBES, *CORPUS]
    context = 30 if kind == "bert" else 14
    if kind == "siglip":
        rows = [[*slow_siglip(text)[:-1][: context - 1], 1] for text in texts]
    else:
        rows = ids_of(transformers.AutoTokenizer.from_pretrained(folder), texts, context)
    model = model_of(kind, load_tokenizer(folder).vocab)
    model.save_pretrained(folder)
    checkpoint = load_pretrained(folder)
    assert checkpoint.text is not None
    assert checkpoint.tokenizer is not None
    ours = load_tokenizer(checkpoint.tokenizer, vocab=checkpoint.text.vocab)
    read_texts = texts_of(encode_parts(ours, texts, checkpoint.text.context, 1).ids)
    read = checkpoint.text(read_texts.ids[:, 0], read_texts.mask[:, 0])
    ids = torch.tensor([[*row, *[pad] * (context - len(row))] for row in rows])
    if kind == "bert":
        theirs = model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state[:, 0]
    else:
        theirs = model.get_text_features(input_ids=ids).pooler_output
    torch.testing.assert_close(read.pooled, theirs, rtol=1e-5, atol=1e-5)
    assert checkpoint.text.pad == pad


# Loading


def test_a_table_filled_up_to_a_round_size_passes_with_a_warning(folders: dict[str, Path]) -> None:
    size = load_tokenizer(folders["bert"]).vocab
    for full in (size // 64 * 64 + 64, size // 100 * 100 + 100):
        with pytest.warns(UserWarning, match=rf"has {size} tokens and the model a table of {full} rows"):
            assert load_tokenizer(folders["bert"], vocab=full).vocab == size
    assert load_tokenizer(folders["bert"], vocab=size).vocab == size
    for wrong in (size - 1, size // 8 * 8, size + 1 + (size % 8 == 7), size // 64 * 64 + 192):
        with pytest.raises(UserError, match=rf"has {size} tokens, the model {wrong}; name the tokenizer"):
            load_tokenizer(folders["bert"], vocab=wrong)


@pytest.mark.parametrize("kind", ["bert", "clip", "siglip", "siglip2"])
def test_the_empty_shell_of_a_failed_download_is_an_error(kind: str, tmp_path: Path) -> None:
    if kind == "siglip":
        model = tokenizers.models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], unk_id=2)
        config = {"tokenizer_class": "SiglipTokenizer"}
        write(tmp_path, tokenizer_json=tokenizers.Tokenizer(model).to_str(), tokenizer_config_json=config)
    else:
        shell = {"bert": "BertTokenizer", "siglip2": "Siglip2Tokenizer", "clip": "CLIPTokenizer"}[kind]
        getattr(transformers, shell)().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"holds only \d tokens, a real vocabulary at least 256"):
        load_tokenizer(tmp_path)


def mistakes(content: str) -> dict[str, tuple[dict[str, Any], str]]:
    """By name the files of a folder and the message."""
    code = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    left = {"tokenizer_class": "BertTokenizer", "truncation_side": "left"}
    slow, t5 = {"tokenizer_class": "CanineTokenizer"}, {"tokenizer_class": "T5Tokenizer"}
    cleaning = {"text_cfg": {"tokenizer_kwargs": {"clean": "x"}}}
    alone = "a file of sentencepiece alone; `pip install sentencepiece`, or fetch its tokenizer.json"
    both: dict[str, tuple[str, Any, str]] = {  # beside a tokenizer.json
        "code": ("tokenizer_config_json", code, "code of its own, OwnTokenizer, wh"),
        "left": ("tokenizer_config_json", left, "cuts texts on the left"),
        "brace": ("tokenizer_config_json", "{", "tokenizer_config.json is no JSON"),
        "list": ("tokenizer_config_json", "[]", "holds a list, not settings"),
        "deep": ("added_tokens_json", "[" * 100_000, "cannot read the tokenizer in"),
        "cleaning": ("open_clip_config_json", cleaning, "cannot read the tokenizer in .*'x'"),
    }
    return {
        **{kind: ({"tokenizer_json": content, file: x}, said) for kind, (file, x, said) in both.items()},
        "slow": ({"vocab_txt": "a", "tokenizer_config_json": slow}, "a CanineTokenizer, tells no places"),
        "bare": ({"vocab_txt": "a\nb"}, "nothing in .* says whose tokenizer it has; fetch its tokenizer_c"),
        "tables": ({"tokenizer_json": {"model": {"vocab": {}}}}, "cannot read the tokenizer in "),
        "model": ({"spiece_model": b"\x0a\xff", "tokenizer_config_json": t5}, alone),
    }


@pytest.mark.parametrize("name", mistakes(""))
def test_every_mistake_ends_in_one_line(
    name: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.data.tokenizers.tokenizer_files.find_spec", lambda _: None)
    files, message = mistakes((folders["bert"] / "tokenizer.json").read_text())[name]
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(write(tmp_path / "in", **files))
    assert "\n" not in str(caught.value)


def test_names_are_read_from_the_cache_of_the_hub(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "models--some--bert-1.5"
    shutil.copytree(folders["bert"], place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    expected = load_tokenizer(folders["bert"]).encode(NASTY, 40)
    assert load_tokenizer("some/bert-1.5").encode(NASTY, 40) == expected
    for missing in ("some/bert-2", "bert-1.5"):
        with pytest.raises(UserError, match=f"no folder {missing} here, and the Hugging Face hub") as one:
            load_tokenizer(missing)
        assert "\n" not in str(one.value)


@pytest.mark.parametrize("kind", ["bert", "t5", "siglip", "siglip2"])
def test_a_run_keeps_the_tokenizer_it_was_given(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    given = [f"data.tokenizer={folders[kind]}", "train.max_steps=1"]
    sets = [x for one in given for x in ("--set", one)]
    assert call("train", recipe(tmp_path, "maxsim"), "--out", tmp_path / "run", *sets) == 0
    model, own = grainline.load(tmp_path / "run"), load_tokenizer(folders[kind])
    assert model.tokenizer.meta() == own.meta()
    assert model.tokenizer.encode(NASTY, 40) == own.encode(NASTY, 40)
    assert model.description.config.text.vocab == own.vocab  # type: ignore[attr-defined]
    assert model.encode(texts=["A red circle. A blue square."]).vector.isfinite().all()


@pytest.mark.parametrize("kind", ["bert", "siglip", "siglip2", "clip", "vocab", "saved"])
def test_flipped_bytes_of_a_tokenizer_are_read_or_one_line(kind: str, tmp_path: Path) -> None:
    folder_of({"vocab": "clip", "saved": "siglip"}.get(kind, kind), tmp_path)
    if kind == "saved":
        load_tokenizer(tmp_path).save(tmp_path)
    if kind == "vocab":
        model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
        (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
        (tmp_path / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
        (tmp_path / "tokenizer.json").unlink()
    ends = []
    for file in sorted(tmp_path.iterdir()):
        ends += checkpoints.read_damaged(
            file, lambda: load_tokenizer(tmp_path).encode(["a red dog"], 12), 25, checkpoints.JSON_FORMS
        )
    assert not any("\n" in end for end in ends)
    assert 0 < ends.count("read") < len(ends)
