"""Kinds of checkpoints that the transformers library builds: Hugging Face folders, read strictly.

Pixels are normalised inside, padding never counts, and patches pass the same last layers as the summary.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grainline.encoders.pretrained.adapters import draw_by_rows
from grainline.encoders.pretrained.hub import library, note_unknown_fields, quiet, weights_of
from grainline.encoders.pretrained.kind import Kind, Options, Pretrained, Source, sides_of
from grainline.encoders.pretrained.preprocess import of_hugging_face
from grainline.errors import UserError
from grainline.files import read_settings
from grainline.weights import summarize_names

Weights = tuple[dict[str, Tensor], list[str]]  # tensors by name, and the names of those that are left out


class LibraryKind(Kind):
    """Abstract: a model of the transformers library."""

    model_type: str = ""  # in the library, where the kind has another name
    suffix: str = "Model"  # of the library's class
    image_encoder: Any = None  # its class; None: it has no such side
    text_encoder: Any = None
    any_size: bool = False  # it reads images of any size, so that its processor decides
    left_out: str = r"(?!)"  # pattern of tensors in checkpoints that the model does not have; by default none
    unused: str = r"embeddings\.mask_token|pooler\.(dense\.)?(weight|bias)"
    """Pattern of those that the model has and no encoder uses: poolers were trained for other tasks."""
    pixels: Mapping[str, Any] = {}  # how images are prepared where the folder does not say it

    def read(self, folder: Path, options: Options) -> Source:
        """A folder as `save_pretrained` of the library writes it."""
        name = str(folder)
        reader, _ = self.classes()  # no Auto class: it would ask to run code
        with quiet():
            config = reader.from_pretrained(name, trust_remote_code=False).to_dict()
        if (folder / "adapter_config.json").is_file():  # the library would add it to the weights
            raise UserError(f"{folder} has an adapter (adapter_config.json); merge it into the weights first")
        note_unknown_fields(folder, config["model_type"])
        for settings in sides_of({"config": config}).values():
            _square(name, settings)
            settings |= {key: x for key, x in _PLAIN.items() if key in settings}
        self.check(name, config, options)
        state, unread = self.weights(folder, config, options)
        state, left_out = self.filled(folder, config, state)
        pad = pad_of(folder, config.get("text_config", config))
        if "pad_token_id" in config.get("text_config", {}):  # for models that read padding
            config["text_config"]["pad_token_id"] = pad
        image_size = None if self.any_size else sides_of({"config": config})["image"].get("image_size")
        pixels = of_hugging_face(self.pixels, _processor(folder), name, image_size) if self.pixels else {}
        size = pixels.pop("size", None)
        architecture = {"kind": self.name, "config": plain(config), "pad": pad, **pixels}
        size = size if self.any_size else None
        return Source(architecture, state, tokenizer_of(folder), (*unread, *left_out), size=size)

    def weights(self, folder: Path, config: dict[str, Any], options: Options) -> Weights:  # noqa: ARG002
        """The tensors that the library's model reads, and names of others. `options` go into the config."""
        return weights_of(folder), []

    def filled(self, place: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Weights:
        """The weights of a folder or file by the names of the installed library, and what was left out.

        tensors  weights by the names of any version of the library; UserError unless they fit
        """
        config_class, kind = self.classes()
        # A head may have a norm of the same name as the model inside it.
        heads = {key for key in tensors if f"{kind.base_model_prefix}.{key}" in tensors}
        with quiet():
            model, report = kind.from_pretrained(
                None,
                config=config_class.from_dict(config),
                state_dict={key: x for key, x in tensors.items() if key not in heads},
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        unknown = {key.removeprefix(f"{kind.base_model_prefix}.") for key in report["unexpected_keys"]}
        missing, unused = set(report["missing_keys"]), set(self._strip(model))
        unread = {key for key in unknown if re.fullmatch(self.left_out, key)} | heads | (unused - missing)
        other = {key for key, *_ in report["mismatched_keys"]}
        kinds = {"missing": missing - unused, "unknown": unknown - unread, "of another form": other}
        if wrong := summarize_names(kinds):
            which = "its config.json" if place.is_dir() else f"the {self.name} of their shapes"
            raise UserError(f"the weights of {place} do not fit {which}: {wrong}; fetch them again")
        return model.state_dict(), sorted({re.sub(r"(?<!embeddings)\..*", "", key) for key in unread})

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:
        """UserError for settings that cannot be obeyed; `options` go into the config. name: of the folder"""

    def model(self, architecture: Mapping[str, Any]) -> nn.Module:
        config_class, kind = self.classes()
        with quiet():
            model: nn.Module = kind(config_class.from_dict(architecture["config"]))
        self._strip(model)
        return model.float()

    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        draw_by_rows(model)
        image, text = self.sides(model, architecture)
        return Pretrained(image and image.eval(), text and text.eval(), dict(architecture))

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[Any, Any]:
        """The encoders of the library's model, image first; None for a side that it does not have."""
        image, text = self.image_encoder, self.text_encoder
        image = image and image(getattr(model, "vision_model", model), architecture)
        return image, text and text(getattr(model, "text_model", model), architecture)

    def classes(self) -> tuple[Any, Any]:
        """The library's classes of the config and of the model."""
        config = library().CONFIG_MAPPING[self.model_type or self.name]
        return config, getattr(library(), config.__name__.removesuffix("Config") + self.suffix)

    def _strip(self, model: Any) -> list[str]:
        """Take out the parameters that no encoder uses, in place: their names."""
        unused = [name for name, _ in model.named_parameters() if re.fullmatch(self.unused, name)]
        for name in unused:
            place, _, last = ("", "", "pooler") if name.startswith("pooler.") else name.rpartition(".")
            setattr(model.get_submodule(place), last, None)
        return unused


class TwoSided(LibraryKind):
    """Abstract: a model of images and texts with one space for both."""

    row = "text_model.embeddings.position_embedding.weight"

    def space(self, architecture: Mapping[str, Any]) -> int | None:
        width = architecture["config"].get("projection_dim")  # a SigLIP has no projection
        return int(width or sides_of(architecture)["image"]["hidden_size"])

    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        own = ("visual_projection.weight", "text_projection.weight", "logit_scale", "logit_bias")
        loose = {key: x.detach().clone() for key, x in model.named_parameters() if key in own}
        scale, bias = loose.get("logit_scale"), loose.get("logit_bias")
        sides = super().split(model, architecture)
        return sides._replace(
            image_projection=loose.get("visual_projection.weight"),
            text_projection=loose.get("text_projection.weight"),
            scale=None if scale is None else scale.exp().reshape(1),
            bias=None if bias is None else bias.reshape(1),
        )


_PLAIN = {"return_dict": True, "chunk_size_feed_forward": 0}  # settings of the form of results alone


def _square(name: str, config: dict[str, Any]) -> None:
    """Sides of images and patches as one number each; some configs write [224, 224]."""
    if config.get("num_channels", 3) != 3:
        raise UserError(f"num_channels of {name} is {config['num_channels']}; images have 3 colours here")
    for key in {"image_size", "patch_size"} & config.keys():
        sides = config[key] if isinstance(config[key], list) else [config[key]]
        if len(set(sides)) != 1:
            raise UserError(f"{key} of {name} is {sides}; only square images and patches can be read")
        config[key] = sides[0]


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them, without path, precision and version of the file they came from."""
    file = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures"}
    own = {key: plain(x) if isinstance(x, dict) else x for key, x in config.items() if key not in file}
    content: dict[str, Any] = json.loads(json.dumps(own))
    return content


def _processor(folder: Path) -> dict[str, Any]:
    """The settings of the image processor, from the first of the two files that has them, as the library."""
    nested: dict[str, Any] | None = read_settings(folder / "processor_config.json").get("image_processor")
    return read_settings(folder / "preprocessor_config.json") if nested is None else nested


def pad_of(folder: Path, config: Mapping[str, Any]) -> int:
    """The id of padding, which SigLIP reads: that of the tokenizer; the config often lacks it."""
    token = read_settings(folder / "tokenizer_config.json").get("pad_token")
    tokens = read_settings(folder / "tokenizer.json").get("added_tokens", [])
    name = token["content"] if isinstance(token, dict) else token
    numbers = (int(x["id"]) for x in tokens if x["content"] == name)
    return next(numbers, int(config.get("pad_token_id") or 0))


def tokenizer_of(folder: Path) -> str | None:
    """The folder, where it holds a tokenizer."""
    known = re.compile(r"(tokenizer|vocab)\.json|vocab\.txt|.*\.model")
    return str(folder) if any(known.fullmatch(file.name) for file in folder.iterdir()) else None
