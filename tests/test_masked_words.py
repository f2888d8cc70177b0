"""Altered words of captions: which words there are, what becomes of them, and where nothing is altered."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import vocabularies
from test_dataset import CROP, LONG, TOKENIZER, Shelf

from grainline.data.dataset import Draw, Sample, TrainSet
from grainline.data.record import Record
from grainline.data.texts import Chunking, TextsConfig, encode_parts
from grainline.data.tokenizers.tokenizer import MaskTokens, TextTokenizer, drop_words, encode_word_dropout
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.errors import UserError
from grainline.training.recipe import read_recipe

TEXTS = vocabularies.PROBES + vocabularies.CORPUS
HIDING = MaskTokens(4, tuple(range(10, 60)))


@pytest.fixture(scope="module")
def tokenizers_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTokenizer]:
    home = tmp_path_factory.mktemp("tokenizers")
    made = {kind: load_tokenizer(vocabularies.folder_of(kind, home / kind)) for kind in vocabularies.KINDS}
    return made | {"clip": TOKENIZER}


# Words


@pytest.mark.parametrize("kind", vocabularies.KINDS)
def test_words_joined_are_the_text(kind: str, tokenizers_of: dict[str, TextTokenizer]) -> None:
    tokenizer = tokenizers_of[kind]
    plain = encode_parts(tokenizer, TEXTS, 500, 1)
    for text, (ids,) in zip(TEXTS, plain.ids, strict=True):
        first, last = len(tokenizer.prefix), len(tokenizer.suffix)
        words = tokenizer.words(text)
        assert [number for word in words for number in word] == ids[first : len(ids) - last]
        assert all(words)
    for context in (500, 5):
        same = encode_word_dropout(tokenizer, TEXTS, context, 0.0, Random(0))
        assert same == tokenizer.encode(TEXTS, context)


def test_pieces_of_one_word_stand_together(tokenizers_of: dict[str, TextTokenizer]) -> None:
    bert = tokenizers_of["bert"]
    calls = 0
    for text in TEXTS:
        expected: list[list[str]] = []
        for piece in bert.pieces(number for word in bert.words(text) for number in word):
            if piece.startswith("##"):
                expected[-1].append(piece)
                calls += 1
            else:
                expected.append([piece])
        assert [bert.pieces(word) for word in bert.words(text)] == expected
    assert calls > 30
    said = "The dogs' owner, 24"
    spoken = {kind: [one.decode(word) for word in one.words(said)] for kind, one in tokenizers_of.items()}
    assert spoken["clip"] == ["the", "dogs", "'", "owner", ",", "2", "4"]
    assert spoken["siglip"][:3] == ["the", "dogs", "owner"]
    assert len(spoken["siglip"]) == 4
    assert len(bert.words(said)) == 6  # the dogs ' owner , 24
    gemma = tokenizers_of["siglip2"]
    for first, *others in map(gemma.pieces, gemma.words("the wet sand & 2023 dogs")[1:]):
        assert first.startswith("▁")
        assert not any(piece.startswith("▁") for piece in others)


def test_kinds_that_learnt_a_mask_hide_and_never_by_special_tokens(
    tokenizers_of: dict[str, TextTokenizer], tmp_path: Path
) -> None:
    masked = {kind for kind, one in tokenizers_of.items() if one.mask_tokens is not None}
    assert masked == {"bert", "cased", "mpnet", "roberta", "xlm-r", "deberta"}
    bert = tokenizers_of["bert"]
    bert.save(tmp_path)
    for tokenizer in (bert, load_tokenizer(tmp_path)):
        mask_tokens = tokenizer.mask_tokens
        assert mask_tokens is not None
        assert tokenizer.pieces([mask_tokens.mask]) == ["[MASK]"]
        pieces = tokenizer.pieces(mask_tokens.pieces)
        assert not [piece for piece in pieces if piece.startswith("[") and len(piece) > 1]
        assert len(pieces) == len(set(pieces)) == tokenizer.vocab - 5 - 120  # all but special and unused ones


# What becomes of them


def slow(
    words: list[list[int]], share: float, mask_tokens: MaskTokens | None, rng: Random
) -> list[list[int]]:
    """The definition, piece by piece, with the same draws."""
    chances = [rng.random() for _ in words]
    spared = rng.randrange(len(words)) if words and max(chances) < share else None
    out = []
    for i, word in enumerate(words):
        if chances[i] >= share or i == spared:
            out.append(word)
            continue
        kind = 0.99 if mask_tokens is None else rng.random()
        new = []
        if mask_tokens is not None and kind < 0.6:
            for _ in word:
                if kind < 0.5:
                    new.append(mask_tokens.mask)
                else:
                    new.append(mask_tokens.pieces[int(rng.random() * len(mask_tokens.pieces))])
        out.append(new)
    return out


@pytest.mark.parametrize("mask_tokens", [HIDING, None])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
def test_words_are_altered_as_defined(share: float, mask_tokens: MaskTokens | None) -> None:
    for seed in range(300):
        draw = Random(seed)
        words = [[draw.randrange(100, 999)] * draw.randint(1, 4) for _ in range(draw.randint(0, 12))]
        result = drop_words(words, share, mask_tokens, Random(-seed - 1))
        assert result == slow(words, share, mask_tokens, Random(-seed - 1))
        assert len(result) == len(words)
        assert not words or any(a == b for a, b in zip(words, result, strict=True)), "one word stays"
        assert share or result == words


def test_what_goes_makes_room_before_a_text_is_cut() -> None:
    whole = TOKENIZER.encode([LONG], 500).ids[0]
    context = len(whole) - 4
    for seed in range(40):
        (ids,), (lost,) = encode_word_dropout(TOKENIZER, [LONG], context, 0.3, Random(seed))
        rest = sum(len(word) for word in drop_words(TOKENIZER.words(LONG), 0.3, None, Random(seed)))
        assert (ids[0], ids[-1]) == (TOKENIZER.begin, TOKENIZER.end)
        assert len(ids) == min(rest + 2, context)
        assert lost == max(rest + 2 - context, 0)
        left = iter(whole)
        assert lost or all(number in left for number in ids), "words in their order"
    with pytest.raises(UserError, match="it must be at least 3"):
        encode_word_dropout(TOKENIZER, [LONG], 2, 0.2, Random(0))


# Samples


def drawn(
    cfg: dict[str, object], draws: list[Draw], seed: int = 0, source: Shelf | None = None
) -> list[Sample]:
    data = TrainSet(source or Shelf(6), TOKENIZER, CROP, TextsConfig(**cfg), context=99, seed=seed)
    return [data[draw] for draw in draws]


DRAWS = [Draw(i, 0, i) for i in range(6)]


def test_samples_are_altered_by_seed_epoch_and_image_alone() -> None:
    cfg = {"word_dropout": 0.4, "per_image": 2, "sampled_captions": 1}
    first = drawn(cfg, DRAWS)
    assert [s.texts for s in drawn(cfg, DRAWS[::-1])][::-1] == [s.texts for s in first]
    later = [draw._replace(position=50 + draw.position) for draw in DRAWS]
    assert [s.texts for s in drawn(cfg, later)] == [s.texts for s in first]
    plain = drawn(cfg | {"word_dropout": 0.0}, DRAWS)
    for other in (drawn(cfg, DRAWS, seed=1), drawn(cfg, [d._replace(epoch=1) for d in DRAWS]), plain):
        assert all(a.texts != b.texts for a, b in zip(first, other, strict=True))
    assert all((a.pixels == b.pixels).all() for a, b in zip(first, plain, strict=True))
    for a, b in zip(first, plain, strict=True):
        for new, old in zip(a.texts, b.texts, strict=True):
            assert new is not None
            assert old is not None
            assert new.level == old.level
            left = iter(old.parts[0])
            assert all(number in left for number in new.parts[0])
            assert len(new.parts[0]) > 2
        twice = [text.parts for text in a.texts[:2] if text is not None]
        assert twice[0] != twice[1], "texts of one image are altered each on its own"


class Described(Shelf):
    """The same with descriptions."""

    def __getitem__(self, index: int) -> Record:
        return super().__getitem__(index)._replace(dense=LONG)


def test_descriptions_are_not_altered() -> None:
    samples = drawn({"word_dropout": 1.0}, DRAWS, source=Described(6))
    whole = TOKENIZER.encode([LONG], 99).ids
    assert all(sample.dense == whole for sample in samples)
    assert all(sample.texts[0] is not None and sample.texts[0].parts != whole for sample in samples)


@pytest.mark.parametrize(
    "cfg",
    [{"foils": 1}, {"sentences": 2}, {"phrases": {"max_phrases": 3}}, {"chunks": 2}],
    ids=lambda cfg: next(iter(cfg)),
)
def test_altered_words_are_for_plain_captions(cfg: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="word_dropout goes with no foils"):
        TextsConfig(word_dropout=0.2, **cfg)


@pytest.mark.parametrize(("parts", "chunking"), [(4, None), (4, Chunking()), (1, Chunking())])
def test_altered_words_are_for_methods_that_read_one_part(parts: int, chunking: Chunking | None) -> None:
    options: dict[str, Any] = {"parts": parts, "chunking": chunking}
    with pytest.raises(UserError, match=r"word_dropout is for methods that read a text in one part"):
        TrainSet(Shelf(1), TOKENIZER, CROP, TextsConfig(word_dropout=0.2), context=9, seed=0, **options)


@pytest.mark.parametrize("name", ["seps/vit_224", "seps/swin_384", "laps/vit_224", "laps/flickr8k"])
def test_recipes_of_the_papers_alter_words(name: str) -> None:
    texts = read_recipe(name, ["data.descriptions=[long]"]).data.texts
    assert texts.word_dropout == (0.0 if name == "laps/flickr8k" else 0.2)
