"""Tokenizers of BERT, SigLIP 2 and SigLIP against the transformers library and a slow sentencepiece."""
# ruff: noqa: RUF001 (typographic marks are what is tested)

import hashlib
import importlib.util
import json
import pickle
import shutil
import string
import sys
import types
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import tokenizers
import torch
import vocabularies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import call, recipe
from vocabularies import CORPUS, PROBES, Sentencepiece, siglip_text, write

import grainline
from grainline.data.captions import clean
from grainline.data.texts import encode_parts
from grainline.data.tokenizers.library_tokenizer import LibraryTokenizer
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer, read_tokenizer
from grainline.encoders.pretrained import load_pretrained
from grainline.errors import UserError
from grainline.types import texts_of

TEXTS = [clean(text) for text in PROBES + CORPUS]


def bert_folder(folder: Path, lower: bool = True) -> Path:
    from transformers import BertTokenizer

    BertTokenizer(vocab=vocabularies.bert_words(lower), do_lower_case=lower).save_pretrained(folder)
    return folder


def siglip2_folder(folder: Path) -> Path:
    from transformers import Siglip2Tokenizer

    vocabulary, merges = vocabularies.gemma()
    made = Siglip2Tokenizer(vocab=vocabulary, merges=merges, add_bos_token=False, add_eos_token=True)
    made.save_pretrained(folder)
    return folder


MAKERS: dict[str, Callable[[Path], Path]] = {
    "bert": bert_folder,
    "siglip2": siglip2_folder,
    "siglip": vocabularies.siglip_folder,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("tokenizers")
    return {kind: make(home / kind) for kind, make in MAKERS.items()}


@pytest.fixture(params=MAKERS)
def tokenizer(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Any:
    return load_tokenizer(folders[request.param])


def slow_siglip(text: str, slow: Sentencepiece, lower: bool = True) -> list[int]:
    return [*slow.ids(slow.encode(siglip_text(text, lower))), 1]


# The same ids as others


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.txt"])
def test_bert_is_the_librarys_bert(lower: bool, form: str, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    bert_folder(tmp_path, lower)
    if form == "vocab.txt":
        words = vocabularies.bert_words(lower)
        lines = "".join(f"{word}\n" for word in sorted(words, key=words.__getitem__))
        write(tmp_path, vocab_txt=lines, tokenizer_config_json={"do_lower_case": lower})
        (tmp_path / "tokenizer.json").unlink()
    ours, theirs = load_tokenizer(tmp_path), BertTokenizer.from_pretrained(tmp_path)
    for context in (200, 9):
        expected = theirs(TEXTS, truncation=True, max_length=context).input_ids
        assert ours.encode(TEXTS, context).ids == expected
    assert (ours.vocab, ours.around) == (len(theirs), 2)
    assert ours.encode(["Dog"], 9).ids == ours.encode(["dog"], 9).ids or not lower


def test_bert_without_a_word_about_small_letters_keeps_those_of_its_file(tmp_path: Path) -> None:
    bert_folder(tmp_path, lower=False)
    write(tmp_path, tokenizer_config_json={"tokenizer_class": "BertTokenizer"})
    big, small = load_tokenizer(tmp_path).encode(["A", "a"], 9).ids
    assert big != small
    write(tmp_path, tokenizer_config_json={"do_lower_case": True})
    big, small = load_tokenizer(tmp_path).encode(["A", "a"], 9).ids
    assert big == small


def test_siglip2_is_the_librarys_siglip2(folders: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    ours, theirs = load_tokenizer(folders["siglip2"]), AutoTokenizer.from_pretrained(folders["siglip2"])
    for context in (200, 9):
        expected = theirs(TEXTS, truncation=True, max_length=context).input_ids
        assert ours.encode(TEXTS, context).ids == expected
    assert (ours.begin, ours.end, ours.around) == (None, 1, 1)


def test_siglip2_that_is_called_gemma_gets_the_same_ids(folders: dict[str, Path], tmp_path: Path) -> None:
    """Its file writes a begin token and no end, its settings the other way round: the settings count."""
    found = load_tokenizer(vocabularies.gemma_folder(tmp_path))
    assert found.encode(TEXTS, 64) == load_tokenizer(folders["siglip2"]).encode(TEXTS, 64)


@pytest.mark.parametrize("form", ["json", "model", "both"])
@pytest.mark.parametrize("lower", [True, False])
def test_siglip_is_sentencepiece_of_the_canonical_text(form: str, lower: bool, tmp_path: Path) -> None:
    vocabularies.siglip_folder(tmp_path, json=form != "model", model=form != "json", do_lower_case=lower)
    ours, slow = load_tokenizer(tmp_path), Sentencepiece()
    for text in TEXTS:
        assert ours.encode([text], 500).ids[0] == slow_siglip(text, slow, lower), text
    assert (ours.begin, ours.end, ours.around, ours.vocab) == (None, 1, 1, len(slow.pieces))


def test_bytes_stand_for_unknown_characters_where_the_model_has_them(tmp_path: Path) -> None:
    config = {"tokenizer_class": "SiglipTokenizer"}
    write(tmp_path, spiece_model=vocabularies.spiece(fallback=True), tokenizer_config_json=config)
    ours, slow = load_tokenizer(tmp_path), Sentencepiece(fallback=True)
    assert ours.encode(TEXTS, 500).ids == [slow_siglip(text, slow) for text in TEXTS]
    assert 2 not in ours.encode(["日本語"], 500).ids[0]


def test_the_librarys_own_code_for_siglip_gives_the_same(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class needs sentencepiece, whose place the slow one takes here."""
    import transformers.models.siglip as package

    monkeypatch.setitem(sys.modules, "sentencepiece", types.ModuleType("sentencepiece"))
    file = Path(str(package.__file__)).with_name("tokenization_siglip.py")
    spec = importlib.util.spec_from_file_location("transformers.models.siglip.probe", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    theirs = object.__new__(module.SiglipTokenizer)
    theirs.do_lower_case, theirs.sp_model = True, (slow := Sentencepiece())
    monkeypatch.setattr(module.SiglipTokenizer, "unk_token", "<unk>", raising=False)
    ours = load_tokenizer(folders["siglip"])
    for text in TEXTS:
        tokens = theirs._tokenize("▁" + text.replace("▁", " "))
        assert ours.encode([text], 500).ids == [[*slow.ids(tokens), 1]], text


ODD = st.characters(max_codepoint=0x052F, exclude_categories=["Cs", "Cn", "Mn", "Mc", "Me", "Cf"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("aodg s'’.&;<#1éΣ²´K_-▁") | ODD, max_size=25))
def test_any_text_has_the_ids_of_the_slow_sentencepiece_and_spans_inside_itself(
    tokenizer: LibraryTokenizer, text: str
) -> None:
    ids, cleaned = tokenizer.encode([text], 300).ids[0], clean(text)
    if tokenizer.kind == "siglip":
        assert ids == slow_siglip(cleaned, Sentencepiece())
    spans = tokenizer.spans(text, 300)
    assert len(spans) == len(ids)
    assert all(0 <= start <= end <= len(cleaned) for start, end in spans)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)


# What all kinds do alike


def test_texts_are_cleaned_first(tokenizer: LibraryTokenizer) -> None:
    fancy = ["it’s  a “red”\tdog", "red &amp;amp; red\n", "２３ dogs", "ﬁnal"]
    plain = ['it\'s a "red" dog', "red & red", "23 dogs", "final"]
    assert tokenizer.encode(fancy, 40).ids == tokenizer.encode(plain, 40).ids


def test_long_texts_are_cut_and_counted_and_keep_their_end(tokenizer: LibraryTokenizer) -> None:
    text = "the dog runs over the sand"
    whole, short = tokenizer.encode([text, "a"], 100).ids
    size = len(whole)
    for context in range(tokenizer.around + 1, size + 3):
        ids, lost = tokenizer.encode([text, "a"], context)
        assert ids[0] == ([*whole[: context - 1], tokenizer.end] if context < size else whole)
        assert lost == [max(size - context, 0), max(len(short) - context, 0)]
    with pytest.raises(UserError, match=rf"must be at least {tokenizer.around + 1} \(.*one token, end\)"):
        tokenizer.encode(["a"], tokenizer.around)


def test_spans_say_where_tokens_stand_in_the_cleaned_text(tokenizer: LibraryTokenizer) -> None:
    text = "- The  dog’s café 🐕 İx (costs) &amp; 42, a brown   bag."
    cleaned = tokenizer.cleaned(text)
    assert cleaned == clean(text)
    gone = string.punctuation if tokenizer.kind == "siglip" else ""
    for context in (100, 9):
        ids, spans = tokenizer.encode([text], context).ids[0], tokenizer.spans(text, context)
        assert len(ids) == len(spans)
        inner = spans[tokenizer.around - 1 : -1]
        assert inner == sorted(inner)
        pieces = tokenizer.pieces(ids)[tokenizer.around - 1 : -1]
        for piece, (start, end) in zip(pieces, inner, strict=True):
            if not piece.startswith(("<", "[", "▁<")):
                said = "".join(x for x in cleaned[start:end].lower() if x not in gone).replace(" ", "▁")
                assert fold(said) == fold(piece.removeprefix("##").strip("▁")), (piece, start, end)
        for start, end in inner:
            assert cleaned[start:end].strip() == cleaned[start:end]
    last = tokenizer.spans(text, 100)[-1]
    assert last == (len(cleaned), len(cleaned))
    assert tokenizer.spans("", 100) == [(0, 0)] * tokenizer.around


def fold(text: str) -> str:
    """Without accents, as BERT reads letters."""
    return "".join(x for x in unicodedata.normalize("NFD", text) if not unicodedata.combining(x))


def test_pickling_saving_and_loading_change_nothing(tokenizer: LibraryTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "a")
    again = [pickle.loads(pickle.dumps(tokenizer)), read_tokenizer(tmp_path / "a")]
    for other in again:
        assert type(other) is LibraryTokenizer
        assert other.encode(PROBES, 50) == tokenizer.encode(PROBES, 50)
        assert other.spans(PROBES[2], 50) == tokenizer.spans(PROBES[2], 50)
        assert other.to_json() == tokenizer.to_json()
        assert other.meta() == tokenizer.meta()
    read_tokenizer(tmp_path / "a").save(tmp_path / "b")
    for name in ("tokenizer.json", "tokenizer_meta.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    meta = json.loads((tmp_path / "a" / "tokenizer_meta.json").read_text())
    assert meta == {
        "kind": tokenizer.kind,
        "vocab": tokenizer.vocab,
        "begin": tokenizer.begin,
        "end": tokenizer.end,
        "sha256": hashlib.sha256((tmp_path / "a" / "tokenizer.json").read_bytes()).hexdigest(),
    }


def test_a_siglip_that_keeps_capitals_keeps_them_when_saved(tmp_path: Path) -> None:
    found = load_tokenizer(vocabularies.siglip_folder(tmp_path / "a", do_lower_case=False))
    found.save(tmp_path / "b")
    assert read_tokenizer(tmp_path / "b").encode(["THE dog"], 9) == found.encode(["THE dog"], 9)
    assert found.encode(["THE dog"], 9).ids != found.encode(["the dog"], 9).ids


def test_other_libraries_read_the_saved_file(tokenizer: LibraryTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    foreign = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    quoted = ['"A dog" runs', '" A dog " runs', ". . A dog", "- ", '"', '" "']
    for text in [*CORPUS[:5], *quoted]:
        text = clean(text)
        assert foreign.encode(text).ids == tokenizer.encode([text], 100).ids[0]


def test_decoding_gives_a_text_with_the_same_ids(tokenizer: LibraryTokenizer) -> None:
    ids = tokenizer.encode(["The café on the sand"], 50).ids[0]
    assert fold(tokenizer.decode(ids)) == "the cafe on the sand"


def test_sentences_read_apart_have_their_own_ends_and_count_what_is_left_out(
    tokenizer: LibraryTokenizer,
) -> None:
    first, second, third = "A dog runs.", "The cats sit on the sand.", "A red bag."
    found = encode_parts(tokenizer, [f"{first} {second} {third}"], context=6, parts=2)
    alone = [tokenizer.encode([text], 100).ids[0] for text in (first, second, third)]
    cut = tokenizer.encode([first, second], 6)
    assert found.ids == [cut.ids]
    assert found.truncated_tokens == [sum(cut.truncated_tokens) + len(alone[2]) - tokenizer.around]


# From strings to vectors


def model_of(kind: str, vocab: int) -> Any:
    """A small model with random weights that reads ids of a tokenizer."""
    import transformers

    text = checkpoints.TEXT | {"vocab_size": vocab}
    if kind == "bert":
        return checkpoints.shaken(transformers.BertModel(transformers.BertConfig(**text)))
    text |= {"max_position_embeddings": 14, "projection_size": 64, "pad_token_id": 1}
    config = transformers.SiglipConfig(vision_config=checkpoints.IMAGE, text_config=text)
    return checkpoints.shaken(transformers.SiglipModel(config))


def library_ids(kind: str, folder: Path) -> list[list[int]]:
    """Ids of TEXTS, padded to the context of the model, as the library makes them."""
    from transformers import AutoTokenizer

    if kind == "siglip":
        slow = Sentencepiece()
        cut = [[*slow_siglip(text, slow)[:-1][:13], 1] for text in TEXTS]
        return [[*ids, *[1] * (14 - len(ids))] for ids in cut]
    context = {"bert": 30, "siglip2": 14}[kind]
    theirs = AutoTokenizer.from_pretrained(folder, padding_side="right")
    ids: list[list[int]] = theirs(TEXTS, padding="max_length", truncation=True, max_length=context).input_ids
    return ids


@torch.no_grad()
@pytest.mark.parametrize("kind", MAKERS)
def test_strings_give_the_vectors_of_the_library(kind: str, tmp_path: Path) -> None:
    folder = MAKERS[kind](tmp_path)
    model = model_of(kind, load_tokenizer(folder).vocab)
    model.save_pretrained(folder)
    found = load_pretrained(folder)
    assert found.text is not None
    assert found.tokenizer is not None
    ours = load_tokenizer(found.tokenizer, vocab=found.text.vocab)
    texts = texts_of(encode_parts(ours, TEXTS, found.text.context, 1).ids)
    read = found.text(texts.ids[:, 0], texts.mask[:, 0])
    ids = torch.tensor(library_ids(kind, folder))
    if kind == "bert":
        theirs = model(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state[:, 0]
    else:
        theirs = model.get_text_features(input_ids=ids).pooler_output
    torch.testing.assert_close(read.pooled, theirs, rtol=1e-5, atol=1e-5)
    assert found.text.pad == {"siglip": 1, "siglip2": 0, "bert": 0}[kind]


# Loading


def test_a_table_filled_up_to_a_round_size_passes_with_a_warning(folders: dict[str, Path]) -> None:
    size = load_tokenizer(folders["bert"]).vocab
    full = size // 64 * 64 + 64
    with pytest.warns(UserWarning, match=rf"has {size} tokens and the model a table of {full} rows"):
        assert load_tokenizer(folders["bert"], vocab=full).vocab == size
    assert load_tokenizer(folders["bert"], vocab=size).vocab == size
    for wrong in (size - 1, size // 8 * 8, size + 1 + (size % 8 == 7), full + 128):
        with pytest.raises(UserError, match=rf"has {size} tokens, the model {wrong}; name the tokenizer"):
            load_tokenizer(folders["bert"], vocab=wrong)


def test_saved_tokenizers_load_as_what_they_were(folders: dict[str, Path], tmp_path: Path) -> None:
    clip = Tokenizer.train(CORPUS, 600)
    clip.save(tmp_path / "clip")
    assert type(read_tokenizer(tmp_path / "clip")) is Tokenizer
    load_tokenizer(folders["bert"]).save(tmp_path / "bert")
    assert read_tokenizer(tmp_path / "bert").kind == "bert"
    for kind in ("siglip", "siglip2"):
        load_tokenizer(folders[kind]).save(tmp_path / kind)
        (tmp_path / kind / "tokenizer.json").write_bytes((tmp_path / "bert" / "tokenizer.json").read_bytes())
        with pytest.raises(UserError, match="are not of one tokenizer"):
            read_tokenizer(tmp_path / kind)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_empty_shell_of_a_failed_download_is_an_error(kind: str, tmp_path: Path) -> None:
    import transformers

    if kind == "siglip":
        model = tokenizers.models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], unk_id=2)
        config = {"tokenizer_class": "SiglipTokenizer"}
        write(tmp_path, tokenizer_json=tokenizers.Tokenizer(model).to_str(), tokenizer_config_json=config)
    else:
        shell = {"bert": "BertTokenizer", "siglip2": "Siglip2Tokenizer"}[kind]
        getattr(transformers, shell)().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"holds only \d tokens, a real vocabulary at least 256"):
        load_tokenizer(tmp_path)


def test_every_mistake_ends_in_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    content = {kind: (folders[kind] / "tokenizer.json").read_text() for kind in folders}
    headless = json.loads(content["bert"])
    headless["model"]["vocab"] = {f"x{i}": i for i in range(300)}
    headless |= {"added_tokens": [], "post_processor": None}
    t5 = {"tokenizer_class": "T5Tokenizer"}
    named = {"tokenizer_class": "SiglipTokenizer"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tokenizer_json": content["siglip"]}, "is a Unigram, and nothing beside it says"),
        ({"tokenizer_json": content["siglip"], "tokenizer_config_json": t5}, "a Unigram and called a T5Tok"),
        (
            {"tokenizer_json": content["bert"], "tokenizer_config_json": named},
            "a WordPiece and called a Siglip",
        ),
        ({"tokenizer_json": headless}, r"has no \[CLS\], which stands around every text"),
        ({"tokenizer_json": {"model": {"vocab": {}}}}, "is no tokenizer of the tokenizers library: "),
        (
            {"tokenizer_json": content["bert"], "tokenizer_config_json": "{"},
            "tokenizer_config.json is no JSON",
        ),
        ({"tokenizer_json": content["bert"], "tokenizer_config_json": "[]"}, "holds a list, not settings"),
        ({"spiece_model": b"\x0a\xff", "tokenizer_config_json": named}, "is no model of sentencepiece"),
        ({"spiece_model": b"", "tokenizer_config_json": named}, "spiece.model holds only 0 tokens"),
        (
            {"tokenizer_model": b"", "tokenizer_config_json": named},
            "holds only tokenizer.model, which is not",
        ),
    ]
    for number, (files, message) in enumerate(cases):
        with pytest.raises(UserError, match=message) as caught:
            load_tokenizer(write(tmp_path / str(number), **files))
        assert "\n" not in str(caught.value)
    config = write(tmp_path / "0", config_json={"model_type": "siglip"})
    assert load_tokenizer(config).meta()["kind"] == "siglip"


def test_spiece_without_protobuf_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = vocabularies.siglip_folder(tmp_path, json=False)
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(UserError, match=r"protobuf.*`pip install protobuf`, or give a folder that holds tok"):
        load_tokenizer(folder)


def test_names_are_read_from_the_cache_of_the_hub(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "models--some--bert-1.5"
    shutil.copytree(folders["bert"], place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_tokenizer("some/bert-1.5").encode(TEXTS, 40) == load_tokenizer(folders["bert"]).encode(
        TEXTS, 40
    )
    for missing in ("some/bert-2", "bert-1.5"):
        with pytest.raises(
            UserError, match=f"no folder {missing} here, and the Hugging Face hub gave no"
        ) as caught:
            load_tokenizer(missing)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_run_keeps_the_tokenizer_it_was_given(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    given = [f"data.tokenizer={folders[kind]}", "train.max_steps=1"]
    sets = [x for one in given for x in ("--set", one)]
    assert call("train", recipe(tmp_path, "maxsim"), "--out", tmp_path / "run", *sets) == 0
    model, own = grainline.load(tmp_path / "run"), load_tokenizer(folders[kind])
    assert model.tokenizer.meta() == own.meta()
    assert model.tokenizer.encode(TEXTS, 40) == own.encode(TEXTS, 40)
    assert model.description.config.text.vocab == own.vocab  # type: ignore[attr-defined]
    assert model.encode(texts=["A red circle. A blue square."]).vector.isfinite().all()


@pytest.mark.parametrize("kind", ["bert", "siglip", "siglip2", "spiece", "clip", "vocab"])
def test_flipped_bytes_of_a_tokenizer_are_read_or_one_line(kind: str, tmp_path: Path) -> None:
    if kind in ("clip", "vocab"):
        Tokenizer.train(CORPUS, vocab=600).save(tmp_path)
        (tmp_path / "tokenizer_meta.json").unlink()
    else:
        make = {"bert": bert_folder, "siglip2": siglip2_folder, "siglip": vocabularies.siglip_folder}
        make.get(kind, lambda place: vocabularies.siglip_folder(place, json=False))(tmp_path)
    if kind == "vocab":
        model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
        (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
        (tmp_path / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
        (tmp_path / "tokenizer.json").unlink()
    ends = []
    for file in sorted(tmp_path.iterdir()):
        ends += checkpoints.read_damaged(
            file, lambda: load_tokenizer(tmp_path).encode(["a red dog"], 12), 40, checkpoints.JSON_FORMS
        )
    assert not any("\n" in end for end in ends)
    assert 0 < ends.count("read") < len(ends)
