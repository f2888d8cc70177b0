"""Text encoders of the transformers library that know no images, also in folders of sentence-transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from grainline.encoders.pretrained.adapters import TextEncoder
from grainline.encoders.pretrained.kind import Options, Source
from grainline.encoders.pretrained.library import LibraryKind
from grainline.encoders.pretrained.sentence_folders import head_of, pooled, read_folder, transformer_of
from grainline.errors import UserError


class LibraryText(TextEncoder):
    """A text model of the library and what is behind it in a folder of sentence-transformers.

    Where layers are behind it, each token passes them as a text of this token alone would.
    """

    table = "embeddings.position_embeddings"

    def __init__(self, model: Any, architecture: Mapping[str, Any]) -> None:
        config = architecture["config"]
        self.ways, head = architecture.get("pool", ["cls"]), architecture.get("head", [])
        self.plain = not head and len(self.ways) == 1
        outs = [step["out_features"] for step in head if step]
        width = outs[-1] if outs else len(self.ways) * config["hidden_size"]
        context = architecture.get("context", config["max_position_embeddings"])
        super().__init__(model, width=width, context=context, vocab=config["vocab_size"])

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        model: Any = self.model
        attended = mask | ~mask.any(1, keepdim=True)  # a row of padding attends to itself: no NaN
        hidden = model(input_ids=ids, attention_mask=attended.long()).last_hidden_state
        summary = model.sentence_head(pooled(hidden, attended, self.ways))
        return hidden if self.plain else model.sentence_head(hidden.repeat(1, 1, len(self.ways))), summary


class Text(LibraryKind):
    """A text encoder."""

    model_class, config_class = "BertModel", "BertConfig"
    grid = None
    row = "embeddings.position_embeddings.weight"
    headless = True
    left_out = r"(pooler|cls|classifier|qa_outputs)\b.*"

    def read(self, folder: Path, options: Options) -> Source:
        source = super().read(transformer_of(folder), options)
        architecture, state, config = source.architecture, dict(source.state), source.architecture["config"]
        context = config["max_position_embeddings"]
        if (folder / "modules.json").is_file():
            fields, weights = read_folder(folder, config["hidden_size"])
            state |= {f"sentence_head.{name}": x for name, x in weights.items()}
            architecture |= fields | {"context": min(context, fields["context"] or context)}
        return source._replace(architecture=architecture, state=state)

    def model(self, architecture: Mapping[str, Any]) -> nn.Module:
        model = super().model(architecture)
        model.add_module("sentence_head", head_of(architecture.get("head", [])))
        return model

    def fit(self, source: Source, options: Options) -> Source:
        architecture = source.architecture
        if options.context is not None:
            architecture["context"] = options.context
        if options.pool is not None:
            width = architecture["config"]["hidden_size"]
            read = [step["in_features"] for step in architecture.get("head", []) if step]
            if read and read[0] != width:
                raise UserError(
                    f"pool {options.pool} gives {width} numbers, and the first Dense of the checkpoint reads "
                    f"{read[0]}; leave model.text.pool out"
                )
            architecture["pool"] = [options.pool]
        return super().fit(source, options._replace(pool=None))

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[None, LibraryText]:
        return None, LibraryText(model, architecture)
