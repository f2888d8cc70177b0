"""Encoders with weights that others trained, for any pair of an image and a text encoder.

Only this folder knows names of other programs' parameters, classes and settings. In three steps:
  1. find the kind of a checkpoint (`KINDS`) by the `model_type` of its config.json, or by its tensors;
  2. read it strictly: a missing or unknown tensor is an error, and so is a setting that cannot be obeyed.
     Heads that no encoder has (such as a classifier) are left out by name and listed;
  3. fit its positions to the wanted size of images and length of texts, and build its encoders.

    adapters        Models of the transformers library as encoders of this package.
    archive         Tensors from files of other programs, without running code in these files.
    clip_towers     CLIP (Hugging Face folders, state dicts of OpenAI, open_clip and Long-CLIP), and GroupViT.
    convert         Pretrained towers as files that other programs read.
    hub             The Hugging Face hub, packages of the Python registry, and the transformers library.
    image_towers    Image encoders that know no texts.
    kind            What a kind of checkpoint is, and the configs of encoders from checkpoints.
    library         Kinds that the transformers library builds: Hugging Face folders, read strictly.
    llava           Descriptions by LLaVA, through the transformers library.
    preprocess      Settings of checkpoints: how images are prepared, and the config of open_clip.
    published       FLAIR, beta-CLIP, FG-CLIP and LAPS, in the layouts of their authors.
    siglip_towers   SigLIP and SigLIP 2, for images of one size or of any shape, and FG-CLIP 2.
    text_towers     Text encoders that know no images, also in folders of sentence-transformers.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grainline.config import HUB_FILE
from grainline.encoders.pretrained.archive import NUMBERS, lone_weights, read_tensors
from grainline.encoders.pretrained.hub import PREFIX, download, package_file, readable
from grainline.encoders.pretrained.image_towers import TOWERS
from grainline.encoders.pretrained.kind import Kind, Options, Pretrained, PretrainedConfig, Source
from grainline.encoders.pretrained.text_towers import transformer_of
from grainline.errors import UserError
from grainline.files import read_settings
from grainline.weights import check_numbers, state_dict_mismatch

__all__ = ["Pretrained", "build_pretrained", "kind_of", "load_pretrained"]


class Row(NamedTuple):
    """A kind in the table."""

    place: str  # module in this folder and class
    tensor: str = ""  # of files of this kind, by its name; empty: it is read by its config.json
    architecture: str = ""  # of folders of this kind, among the `architectures` of their config.json


KINDS = {
    "flair": Row("published:Flair", "image_post.proj"),
    "beta-clip": Row("published:BetaClip", "text_conditioned_patches_block.logit_scale"),
    "fg-clip": Row("published:FgClip", architecture="FGCLIPModel"),
    "laps": Row("published:Laps", "cross_net.aggr_net.scale"),
    "clip": Row("clip_towers:Clip", "visual.conv1.weight"),
    "siglip": Row("siglip_towers:Siglip", "visual.trunk.attn_pool.latent"),
    "siglip2": Row("siglip_towers:Naflex"),
    "fgclip2": Row("siglip_towers:FgClip2"),
    "groupvit": Row("clip_towers:GroupViT"),
    "clip_vision_model": Row("clip_towers:ClipVision"),
    "siglip_vision_model": Row("siglip_towers:SiglipVision"),
    **dict.fromkeys(TOWERS, Row("image_towers:Vision")),
    **dict.fromkeys(("albert", "bert", "camembert", "deberta", "deberta-v2"), Row("text_towers:Text")),
    **dict.fromkeys(("distilbert", "electra", "modernbert", "mpnet", "roberta"), Row("text_towers:Text")),
    "xlm-roberta": Row("text_towers:Text"),
    **dict.fromkeys(("t5", "mt5", "umt5"), Row("text_towers:T5")),
    **dict.fromkeys(("clip_text_model", "siglip_text_model"), Row("text_towers:TextSide")),
    "siglip2_text_model": Row("text_towers:TextSide"),
    "efficientnet_lite": Row("image_towers:EfficientNetLiteKind", "_conv_stem.weight"),
}
"""By their name; of a model of the transformers library its `model_type`. The first that fits is taken."""


def load_pretrained(name: str | Path, **choices: Any) -> Pretrained:
    """The encoders of a checkpoint, in evaluation mode and float32.

    name     a Hugging Face folder or name; a folder of open_clip; a file with a state dict of OpenAI,
             open_clip, Long-CLIP, EfficientNet-Lite or a published method, a folder with one such file, or
             its name on the hub (owner/name, owner/name/file); a name `pip:...` (`hub.PACKAGES`)
    choices  fields of `Options`, by their name
    """
    options = Options(**choices)
    source = _read(name, options)
    kind = kind_of(source.architecture)
    if options.quick_gelu is not None and not kind.quick:
        raise UserError(f"{name} is a {kind.name}, which has one activation; quick_gelu is for CLIP")
    source = kind.fit(source._replace(architecture=json.loads(json.dumps(source.architecture))), options)
    if options.resize is not None:
        if "max_num_patches" in source.architecture:
            raise UserError(f"{name} reads images in their own shape; leave resize out")
        source.architecture.update({"resize": options.resize, "margin": 1.0})
    model = kind.model(source.architecture)
    wrong = state_dict_mismatch(source.state, model.state_dict())
    if wrong:
        raise UserError(f"{name} does not fit the {kind.name} of its shapes: {wrong}; give it whole")
    model.load_state_dict(source.state, strict=True)
    towers = kind.split(model, source.architecture)
    return towers._replace(tokenizer=source.tokenizer, left_out=source.left_out, published=source.published)


def build_pretrained(architecture: Mapping[str, Any]) -> Pretrained:
    """The same modules with fresh weights: no file and no network is needed."""
    kind = kind_of(architecture)
    return kind.split(kind.model(architecture), architecture)


def encoder_inside(
    config: PretrainedConfig | None, side: str, fits: Callable[[Any], Any], wanted: str
) -> Any:
    """The encoder inside a side of a method, with fresh weights; None where no checkpoint is named."""
    if config is None:
        return None
    assert config.architecture is not None, "read by `start`"
    encoder = getattr(build_pretrained(config.architecture), side)
    if encoder is None or not fits(encoder):
        raise UserError(f"{side}.encoder: {config.pretrained} does not have {wanted}; name another")
    return encoder


def kind_of(architecture: Mapping[str, Any]) -> Kind:
    """The kind of an architecture, which has its name as `kind`."""
    name = architecture["kind"]
    module, _, attribute = KINDS[name].place.partition(":")
    kind: Kind = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)(name)
    return kind


def _read(name: str | Path, options: Options) -> Source:
    place, settings = Path(name), dict[str, Any]()
    if str(name).startswith(PREFIX):
        place = package_file(str(name))
    elif not place.exists():
        if HUB_FILE.fullmatch(str(name)) is None:
            raise UserError(f"no file or folder {name}, and it is no name of the hub; give one of the three")
        place = download(str(name))
    with readable(place):  # settings and tensors of another form stop the reading anywhere
        if any((place / name).is_file() for name in ("config.json", "modules.json")):
            return _named_by(place).read(place, options)
        if place.is_dir():
            place, settings = _in_folder(place)
        stored = read_tensors(place)
        check_numbers({name: x for name, x in stored.tensors.items() if name not in NUMBERS}, place)
        floats = {name: x.float() for name, x in stored.tensors.items() if x.is_floating_point()}
        stored = stored._replace(tensors=stored.tensors | floats)
        kinds = (kind for kind, row in KINDS.items() if row.tensor and row.tensor in stored.tensors)
        return kind_of({"kind": next(kinds, "clip")}).read_file(place, stored, options, settings)


def _named_by(folder: Path) -> Kind:
    """The kind that config.json names. Code of the folder is never run: a kind in the table needs none."""
    config = read_settings(transformer_of(folder) / "config.json")
    classes = str(config.get("architectures"))
    own = (name for name, row in KINDS.items() if row.architecture and row.architecture in classes)
    kind = next(own, str(config.get("model_type", "(none)")))
    if kind not in KINDS:
        code = " with code of its own, which is never run" if "auto_map" in config else ""
        raise UserError(f"{folder} has model_type {kind}{code}; allowed are {', '.join(KINDS)}")
    return kind_of({"kind": kind})


def _in_folder(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The weights in a folder without config.json, and the settings of open_clip."""
    files = [folder / name for name in ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")]
    weights = next((file for file in files if file.is_file()), None)
    content = read_settings(folder / "open_clip_config.json")
    lone = None if weights else lone_weights(folder.iterdir())
    if lone is not None or (weights and content):
        return lone or weights, content  # type: ignore[return-value]
    wrong = "holds no config.json, no open_clip_config.json with weights, and no lone file of weights"
    raise UserError(f"{folder} {wrong}; give one of the three, or a file with a state dict")
