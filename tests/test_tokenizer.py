"""The tokenizer against a slow byte-pair encoder written from its definition, and every way to load one."""
# ruff: noqa: RUF001 (typographic marks are what is tested)

import gzip
import hashlib
import html
import itertools
import json
import pickle
import random
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import ftfy
import pytest
import regex
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vocabularies import CORPUS

from grainline.data.captions import clean
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer, read_tokenizer
from grainline.errors import UserError

PROBES = [
    "A dog on the sand.",
    "",
    "   ",
    "“Curly” quotes, the dog’s ball and the men‘s bags",
    "An emoji 🐕 and a family 👩‍👩‍👧, a flag 🇩🇪",
    "Salt &amp; pepper &amp;lt;tag&amp;gt; &quot;x&quot; &nbsp; &#39;s",
    "full-width １２３ ＡＢＣ and ligatures ﬁne ﬂow",
    "In 2023 there were 1,024 dogs",
    "it's they're we've I'm he'll she'd can't 'tis rock'n'roll IT'S",
    "Ünïcödé, naïve café, Ελληνικά ΣΟΦΟΣ, русский, 日本語 İstanbul ſs'ſ",
    "tabs\tand\nnewlines\r\n\x0b and   blanks",
    "under_score __init__ #hash @at 50% $3.50 http://x.org/?a=b&c=d",
    "literal <|endoftext|> inside and <|STARTOFTEXT|>x",
    "ÃƒÂ© mojibake donâ€™t",
    "...!!?? -- … — · ½ ² 5² Ⅷ ٣",
    "e\u0301 combining and \u00e9 composed, < e&#769; ",
    "x" * 300,
]


def slow_words(text: str) -> list[str]:
    text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
    text = re.sub(r"\s+", " ", text).strip().lower()
    pattern = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    return regex.findall(pattern, text, regex.IGNORECASE)


def slow_letters() -> dict[int, str]:
    kept = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    table = {b: chr(b) for b in kept}
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + len(table) - len(kept))
    return table


def slow_encode(text: str, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> list[int]:
    """Merge the earliest-learnt pair of each word, everywhere in it, until there is none."""
    letters, ids = slow_letters(), []
    for word in slow_words(text):
        if word in ("<|startoftext|>", "<|endoftext|>"):
            ids.append(vocabulary[word])
            continue
        parts = [letters[byte] for byte in word.encode("utf-8")]
        parts[-1] += "</w>"
        while True:
            pairs = set(itertools.pairwise(parts))
            known = [pair for pair in merges if pair in pairs]
            if not known:
                break
            merged, i = [], 0
            while i < len(parts):
                if tuple(parts[i : i + 2]) == known[0]:
                    merged.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            parts = merged
        ids += [vocabulary[part] for part in parts]
    return ids


def slow_learn(texts: list[str], number: int) -> list[tuple[str, str]]:
    """Merge the most frequent pair; of equal ones the pair of the earliest numbers."""
    table = slow_letters()
    tokens = [*sorted(table.values()), *(letter + "</w>" for letter in table.values())]
    number_of = {token: i for i, token in enumerate(tokens)}
    words: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        for word in slow_words(text):
            parts = [table[byte] for byte in word.encode("utf-8")]
            words[(*parts[:-1], parts[-1] + "</w>")] += 1
    merges: list[tuple[str, str]] = []
    while len(number_of) < 512 + number:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], number_of[pair[0]], number_of[pair[1]]))
        merges.append(best)
        number_of.setdefault("".join(best), len(number_of))
        renewed: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            parts, i = [], 0
            while i < len(word):
                step = 2 if word[i : i + 2] == best else 1
                parts.append("".join(word[i : i + step]))
                i += step
            renewed[tuple(parts)] += count
        words = renewed
    return merges


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return Tokenizer.train(CORPUS, 600)


def parts_of(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    content = json.loads(tokenizer.to_json())
    vocabulary = content["model"]["vocab"] | {x["content"]: x["id"] for x in content["added_tokens"]}
    return vocabulary, [tuple(pair) for pair in content["model"]["merges"]]


OLD = st.characters(max_codepoint=0x24FF, exclude_categories=["Cs", "Cn"])  # letters that every library knows


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("aod gs'’.&;<#1é ſK\u0301") | OLD, max_size=25))
def test_ids_are_those_of_the_slow_encoder_on_any_text(toy: Tokenizer, text: str) -> None:
    # What cleaning takes for wrongly decoded bytes may become a letter that libraries do not know alike.
    assume(all(unicodedata.category(letter) != "Cn" for letter in clean(text)))
    vocabulary, merges = parts_of(toy)
    assert toy.encode([text], 1000).ids == [[toy.begin, *slow_encode(text, vocabulary, merges), toy.end]]


def test_training_learns_the_merges_of_the_definition(toy: Tokenizer) -> None:
    assert parts_of(toy)[1] == slow_learn(CORPUS, 600 - 514)
    assert toy.vocab == 600


def test_the_vocabulary_is_laid_out_as_that_of_clip(toy: Tokenizer) -> None:
    vocabulary, merges = parts_of(toy)
    order = sorted(vocabulary, key=lambda token: vocabulary[token])
    assert order[:3] == ["!", '"', "#"]
    assert order[256:258] == ["!</w>", '"</w>']
    assert order[512] == "".join(merges[0])
    assert order[-2:] == ["<|startoftext|>", "<|endoftext|>"]
    assert (toy.prefix, toy.suffix) == ((598,), (599,))


def test_training_gives_the_same_bytes_in_any_order_process_and_number_of_threads(tmp_path: Path) -> None:
    words = itertools.product(("red", "blue"), ("dog", "cat", "cow"), ("mat", "sea"))
    texts = [f"{a} {b} on the {c}" for a, b, c in words]
    Tokenizer.train(texts, 600).save(tmp_path / "a")
    program = (
        "import sys, json; from grainline.data.tokenizers.tokenizer import Tokenizer; "
        "Tokenizer.train(iter(json.loads(sys.argv[1])), 600).save(sys.argv[2])"
    )
    random.Random(0).shuffle(texts)
    environment = {"TOKENIZERS_PARALLELISM": "true", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", program, json.dumps(texts), str(tmp_path / "b")]
    subprocess.run(command, check=True, env=environment)
    for name in ("tokenizer.json", "tokenizer_meta.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_context_without_room_for_a_token_is_an_error(toy: Tokenizer) -> None:
    with pytest.raises(UserError, match="the context is 2 tokens; it must be at least 3"):
        toy.encode(["a"], 2)


def test_decoding_gives_the_cleaned_text_with_spaced_words(toy: Tokenizer) -> None:
    for text in ("a dog & the café 🐕 – “x”", "日本語"):
        ids = toy.encode([text], 100).ids[0]
        assert toy.decode(ids).replace(" ", "") == clean(text).lower().replace(" ", "")
    assert toy.decode(toy.encode(["The  dog's sand."], 100).ids[0]) == "the dog 's sand ."
    pieces = ["<|startoftext|>", "a</w>", "dog</w>", "<|endoftext|>"]
    assert toy.pieces(toy.encode(["a dog"], 9).ids[0]) == pieces


def test_spans_say_where_tokens_stand_in_the_cleaned_text(toy: Tokenizer) -> None:
    text, numbers = "The  dog’s café 🐕 costs &amp; 42 İx", {x: byte for byte, x in slow_letters().items()}
    cleaned = clean(text).lower()
    for context in (100, 6):
        ids, spans = toy.encode([text], context).ids[0], toy.spans(text, context)
        assert len(ids) == len(spans)
        assert spans[0] == (0, 0)
        assert spans[-1][0] == spans[-1][1]
        for piece, (start, end) in zip(toy.pieces(ids)[1:-1], spans[1:-1], strict=True):
            letters = bytes(numbers[x] for x in piece.removesuffix("</w>"))
            assert letters in cleaned[start:end].encode("utf-8")
    assert toy.spans(text, 100)[-1] == (len(cleaned), len(cleaned))


def test_pickling_saving_and_loading_change_nothing(toy: Tokenizer, tmp_path: Path) -> None:
    toy.save(tmp_path)
    saved = [read_tokenizer(tmp_path / name) for name in ("", "tokenizer.json")]
    for other in (pickle.loads(pickle.dumps(toy)), *saved):
        assert other.encode(PROBES, 50) == toy.encode(PROBES, 50)
        assert other.to_json() == toy.to_json()
        assert (other.meta(), other.settings) == (toy.meta(), toy.settings)
    meta = json.loads((tmp_path / "tokenizer_meta.json").read_text())
    digest = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()
    assert meta == {"kind": "clip", "vocab": 600, "begin": 598, "end": 599, "pad": 0, "sha256": digest}


# --- loading ---


def test_a_list_of_merges_gives_the_same_tokenizer(toy: Tokenizer, tmp_path: Path) -> None:
    lines = [" ".join(pair) for pair in parts_of(toy)[1]]
    (tmp_path / "list.txt.gz").write_bytes(gzip.compress("\n".join(["a head line", *lines]).encode()))
    assert load_tokenizer(tmp_path / "list.txt.gz", vocab=600).to_json() == toy.to_json()


@pytest.mark.parametrize("form", ["two files", "old tokenizer.json", "saved"])
def test_every_form_of_clips_files_is_read_as_transformers_reads_it(
    form: str, toy: Tokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary, merges = parts_of(toy)
    lines = [" ".join(pair) for pair in merges]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    if form == "two files":
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
        (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]))
    elif form == "saved":
        transformers.CLIPTokenizer(vocab=vocabulary, merges=merges).save_pretrained(tmp_path)
    else:
        old = json.loads(toy.to_json())
        old["model"]["merges"] = lines  # as older libraries wrote them
        (tmp_path / "tokenizer.json").write_text(json.dumps(old))
    result, theirs = load_tokenizer(tmp_path, vocab=600), transformers.CLIPTokenizer.from_pretrained(tmp_path)
    assert result.encode(PROBES, 77).ids == theirs(PROBES, truncation=True, max_length=77).input_ids
    assert result.encode(CORPUS, 77) == toy.encode(CORPUS, 77)


def test_a_checkpoint_with_a_tokenizer_goes_before_open_clip_and_a_path_before_both(
    toy: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    package, info = site / "open_clip", site / "open_clip_torch-9.9.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    listed = "open_clip/bpe_simple_vocab_16e6.txt.gz"
    lines = [" ".join(pair) for pair in parts_of(toy)[1]]
    (site / listed).write_bytes(gzip.compress("\n".join(["head", *lines]).encode()))
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: open_clip_torch\nVersion: 9.9\n")
    (info / "RECORD").write_text(f"{listed},,\nopen_clip/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(site))
    empty = tmp_path / "weights"
    empty.mkdir()
    for same in (load_tokenizer(), load_tokenizer(checkpoint=empty, vocab=600)):
        assert same.to_json() == toy.to_json()
    Tokenizer.train(CORPUS, 550).save(tmp_path / "own")
    assert load_tokenizer(checkpoint=tmp_path / "own").vocab == 550
    Tokenizer.train(CORPUS, 530).save(tmp_path / "named")
    assert load_tokenizer(tmp_path / "named", checkpoint=tmp_path / "own").vocab == 530


def broken(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_other_mistake_ends_in_one_line(toy: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "future").mkdir()
    toy.save(tmp_path / "future")
    meta = tmp_path / "future" / "tokenizer_meta.json"
    meta.write_text(meta.read_text().replace('"clip"', '"later"'))
    cases = [
        (tmp_path / "nowhere.json", "no tokenizer at .*nowhere.json: give a folder"),
        (tmp_path / "empty", "no tokenizer in .*: it holds none of tokenizer.json, vocab.json, vocab.txt, "),
        (broken(tmp_path, "b.json", "{}"), "no tokenizer in .*b.json"),
        (broken(tmp_path, "d.gz", b"not gzip"), "cannot read the tokenizer .*d.gz"),
        (broken(tmp_path, "e.gz", gzip.compress(b"head\nq qq")), "e.gz holds no merges of CLIP: .*fetch it"),
        (tmp_path / "future", "future/tokenizer.json is of kind later; known are clip, "),
    ]
    for path, message in cases:
        with pytest.raises(UserError, match=message):
            load_tokenizer(path)
    with pytest.raises(UserError, match=r"vocab is 500; a trained tokenizer needs 514 at least"):
        Tokenizer.train(["a"], 500)


def test_files_of_two_tokenizers_side_by_side_are_an_error(toy: Tokenizer, tmp_path: Path) -> None:
    toy.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(Tokenizer.train(CORPUS, 550).to_json())
    with pytest.raises(UserError, match="are not of one tokenizer"):
        read_tokenizer(tmp_path)
