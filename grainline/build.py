"""Builds a method from its description, with fresh weights or those of the checkpoints that it names.

A description may name checkpoints of others (`pretrained`). `start` reads them and adds architecture, size of
images, length of texts and width of the shared space. The description is then enough to build the method
again, without the checkpoints.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grainline.config import Config, override, parse, trusting
from grainline.data.decode import Patches
from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.encoders.pretrained import Pretrained, kind_of, load_pretrained
from grainline.encoders.pretrained.kind import (
    PretrainedConfig,
    PretrainedImageConfig,
    PretrainedTextConfig,
    Published,
    checkpoint_of,
)
from grainline.encoders.superpixels import Superpixels
from grainline.encoders.towers import WIDTH, TowersConfig
from grainline.errors import UserError
from grainline.files import read_plain, reason, without_folders, write_text
from grainline.methods import method_class
from grainline.methods.base import Method
from grainline.weights import state_dict_mismatch

FORMAT = 2  # of model.json
TOO_LARGE = "can't allocate memory", "Storage size calculation overflowed", "out of memory"
"""Messages of torch about a tensor that is too large."""


class Description(NamedTuple):
    """The content of `model.json`."""

    method: str
    config: TowersConfig


class Start(NamedTuple):
    """A complete description, and the checkpoints with the first weights of the method.

    A checkpoint of a published method gives the layers of that method too, where both sides come from it.
    """

    description: Description
    image: Pretrained | None = None
    text: Pretrained | None = None

    def method(self) -> Method:
        """The method with fresh weights, except on the sides that come from a checkpoint."""
        method = build(self.description)
        method.towers.fill(self.image, self.text)
        if self.image is not None and self.image.published.parts:
            self._fill_parts(method, self.image.published)
        for part in method.towers.image.modules():
            if isinstance(part, Superpixels) and part.cfg.checkpoint is not None:
                part.fill(Path(part.cfg.checkpoint))
        return method

    def _fill_parts(self, method: Method, published: Published) -> None:
        """The weights of the method's own layers, strictly; a line where another method leaves them out."""
        side = checkpoint_of(self.description.config.image)
        name = "the checkpoint" if side is None else side.pretrained
        if self.text is not self.image or published.method != self.description.method:
            line = f"{name} has layers of {published.method} too, which go with that method and both sides"
            print(f"{line}: left out", file=sys.stderr)
            return
        own = {key: x for key, x in method.state_dict().items() if not key.startswith("towers.")}
        wrong = state_dict_mismatch(published.parts, own)
        if wrong:
            raise UserError(f"the layers of {published.method} in {name} do not fit these settings: {wrong}")
        method.load_state_dict(published.parts, strict=False)

    def tokenizer(self, name: str | None = None) -> TextTokenizer:
        """The tokenizer of the text side's checkpoint, or the named one; UserError for another vocabulary."""
        assert self.text is not None
        assert self.text.text is not None
        config = checkpoint_of(self.description.config.text)
        assert config is not None
        name = name or self.text.tokenizer
        return load_tokenizer(name, checkpoint=config.pretrained, vocab=self.text.text.vocab)


def start(description: Description, both: Pretrained | None = None) -> Start:
    """Read the checkpoints that a description names; a description without any is returned as it is.

    both  the checkpoint of both sides, if the caller has read it

    Raises UserError where a checkpoint cannot be read, lacks the side it is named for, or does not fit.
    """
    config = description.config
    image, text = (both, both) if both is not None else _load_checkpoints(config)
    if image is None and text is None:
        return Start(description)
    values = config.model_dump(mode="json")
    if image is not None and image.image is not None:
        _complete(values["image"], {"architecture": image.architecture, "size": image.image.size})
    if text is not None and text.text is not None:
        _complete(values["text"], {"architecture": text.architecture, "context": text.text.context})
    # The summary of a side that is itself the encoder of a checkpoint leads into the shared space of that.
    pairs = (config.image, image), (config.text, text)
    direct = (checkpoint if isinstance(side, PretrainedConfig) else None for side, checkpoint in pairs)
    values["width"] = config.width or _width(*direct)
    if image is not None and text is not None and _same(config):
        values |= _logits(values, image)
        if image.published.method == description.method:
            _fill_open(values, config, image.published.config)
    return Start(_with_config(description, values, "the checkpoint"), image, text)


def reads_pretrained_texts(description: Description) -> bool:
    """Whether the text side comes from a checkpoint, which fixes its vocabulary."""
    return checkpoint_of(description.config.text) is not None


def is_pretrained(description: Description) -> bool:
    """Whether any side comes from a checkpoint."""
    return checkpoint_of(description.config.image) is not None or reads_pretrained_texts(description)


def image_settings(description: Description) -> dict[str, Any]:
    """The arguments of `EvalTransform` that the image side's checkpoint needs."""
    image = checkpoint_of(description.config.image)
    if image is None:
        return {}
    settings = image.architecture or {}
    out = {name: settings[name] for name in ("resize", "filter", "margin")}
    if "max_num_patches" in settings:
        out["patches"] = Patches(settings["patch_size"], tuple(settings["max_num_patches"]))
    return out


def build(description: Description) -> Method:
    """A method with fresh weights."""
    with trusting(description.method):  # whoever read the description had to trust it
        cls: Any = method_class(description.method)
    try:
        return cls(description.config)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in TOO_LARGE):
            raise
        wrong = f"this {description.method} is too large for the memory here"
        raise UserError(f"{wrong}: lower its sizes") from None


def shared_config(value: Any) -> Any:
    """The values of a config, as JSON has them, without folders of this machine: for other people."""
    if isinstance(value, dict):
        return {name: shared_config(one) for name, one in value.items()}
    return without_folders(value) if isinstance(value, str) else value


def write_description(folder: Path, description: Description, *, shared: bool = False) -> None:
    """Write `model.json`. shared: by `shared_config`"""
    config = description.config.model_dump(mode="json")
    config = shared_config(config) if shared else config
    values = {"format": FORMAT, "method": description.method, "config": config}
    write_text(folder / "model.json", json.dumps(values, indent=1) + "\n")


def read_description(folder: Path) -> Description:
    """Read `model.json`. UserError for a class outside grainline, unless trusted (`config.trusting`)."""
    where = folder / "model.json"
    try:
        values = json.loads(read_plain(where))
        version, name, config = values["format"], values["method"], values["config"]
    except OSError as error:
        raise UserError(f"{where} cannot be read: {reason(error)}; put back a copy of it") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        wrong = f"{where} is no model description, so it is damaged or was changed"
        raise UserError(f"{wrong}; put back a copy of it") from None
    if version != FORMAT:
        wrong = f"{where} has format {version}, this grainline reads format {FORMAT}"
        raise UserError(f"{wrong}: train again, or use the version that wrote it")
    return Description(name, method_config(name, config, str(where)))


def method_config(name: str, values: dict[str, Any], where: str, field: str = "") -> TowersConfig:
    """The checked config of a method, by its name or "my_module:MyMethod"; `where`, `field` as in `parse`."""
    cls = method_class(name, f"{where}, field method" if field else where)
    return parse(cls.config_class, values, where, field)


def _with_config(description: Description, values: dict[str, Any], where: str) -> Description:
    with trusting(description):  # as in `build`
        return description._replace(config=method_config(description.method, values, where))


def changed(description: Description, changes: list[str], where: str) -> Description:
    """The description with changes of its config, as `override` takes them; `where` is for messages."""
    values = override(description.config.model_dump(mode="json"), changes)
    return _with_config(description, values, where)


def scored(description: Description, scoring: str | None, patches: str | None = None) -> Description:
    """The description with another way to score pairs and other image tokens; None leaves each as it is.

    scoring  the way; for a method that mixes two scores, a colon and the share of the second may follow:
             conditioned:0.7
    patches  `model.image.patches`, for the same weights
    """
    if patches is not None:
        description = changed(description, [f"image.patches={patches}"], "--patches")
    if scoring is None:
        return description
    known = type(description.config).model_fields
    if "scoring" not in known:
        raise UserError(f"scoring is {scoring!r}; {description.method} has one way to score: leave it out")
    way, mixed, share = scoring.partition(":")
    if mixed and "alpha" not in known:
        raise UserError(f"scoring is {scoring!r}; {description.method} mixes no scores: leave :{share} out")
    changes = [f"scoring={way}", *([f"alpha={share}"] if mixed else [])]
    return changed(description, changes, "--scoring")


def _load_checkpoints(config: TowersConfig) -> tuple[Pretrained | None, Pretrained | None]:
    """The checkpoints of both sides; a common one is read once."""
    options: dict[str, dict[str, Any]] = {}
    own = ("size", "resize", "max_num_patches"), ("context", "stretch", "pool", "walk_type")
    for name, fields in zip(("image", "text"), own, strict=True):
        whole: Any = getattr(config, name)
        side = checkpoint_of(whole)
        if side is None:
            continue
        if side.architecture is not None:
            field = f"model.{name if side is whole else f'{name}.encoder'}.architecture"
            raise UserError(f"field {field} is filled in when {side.pretrained} is read; leave it out")
        options[name] = {field: getattr(side, field) for field in ("pretrained", "quick_gelu", *fields)}
        if name == "image" and side is not whole:  # it reads the squares that superpixels are made of
            options[name]["size"] = whole.size
    source_of = {name: own["pretrained"] for name, own in options.items()}
    if _same(config) and options["image"]["quick_gelu"] == options["text"]["quick_gelu"]:
        both = options["image"] | options["text"]
        loaded = dict.fromkeys(options, load_pretrained(both.pop("pretrained"), **both))
    else:
        loaded = {name: load_pretrained(own.pop("pretrained"), **own) for name, own in options.items()}
    for name, checkpoint in loaded.items():
        if getattr(checkpoint, name) is None:
            source, kind = source_of[name], checkpoint.architecture["kind"]
            raise UserError(f"{source} ({kind}) has no {name} side; name another for model.{name}.pretrained")
    return loaded.get("image"), loaded.get("text")


def _fill_open(values: dict[str, Any], config: Config, own: Mapping[str, Any]) -> None:
    """Put the fields of a published method into those that the config leaves open."""
    for name, x in own.items():
        if isinstance(x, dict):
            _fill_open(values[name], getattr(config, name), x)
        elif name not in config.model_fields_set:
            values[name] = x


def _same(config: TowersConfig) -> bool:
    """Whether both sides come from one checkpoint."""
    image, text = config.image, config.text
    return (
        isinstance(image, PretrainedImageConfig)
        and isinstance(text, PretrainedTextConfig)
        and image.pretrained == text.pretrained
    )


def _complete(side: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write what a checkpoint says into the fields of the side that names it."""
    place = side if "pretrained" in side else side["encoder"]
    place |= facts
    side |= {name: facts[name] for name in ("size", "context") if name in facts}


def _width(image: Pretrained | None, text: Pretrained | None) -> int:
    """The width of the common space of the checkpoints; one side alone of a GroupViT has none."""
    spaces = {
        side: kind_of(checkpoint.architecture).space(checkpoint.architecture)
        for side, checkpoint in (("image", image), ("text", text))
        if checkpoint and (checkpoint.heads is None or image is text)
    }
    widths = {width for width in spaces.values() if width is not None}
    if len(widths) > 1:
        both = " and ".join(f"that of the {side} side {width}" for side, width in spaces.items())
        raise UserError(f"the two checkpoints have shared spaces of unlike width, {both}; give model.width")
    return widths.pop() if widths else WIDTH


def _logits(values: dict[str, Any], checkpoint: Pretrained) -> dict[str, float]:
    """Scale and bias of a checkpoint, where the config leaves them open.

    A method with a bias takes both or none: the scale of a CLIP belongs to logits without one.
    """
    scale, bias = checkpoint.scale, checkpoint.bias
    if "scale" not in values or scale is None or ("bias" in values and bias is None):
        return {}
    largest = values["max_scale"]
    own = {"scale": float(scale) if largest is None else min(float(scale), largest)}
    if "bias" in values and bias is not None:
        own["bias"] = float(bias)
    return {name: x for name, x in own.items() if values[name] is None}
