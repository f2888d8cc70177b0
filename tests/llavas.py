"""A tiny LLaVA of random weights with its processor, in a folder as the library writes it."""

from pathlib import Path
from typing import Any

import torch

WORDS = ["a", "red", "green", "blue", "dog", "cat", "bird", "runs", "sleeps", "sand", "grass", "tree"]
WORDS += ["house", "the", "is", "on", ".", ",", "one", "two"]
TEMPLATE = (
    "{% for m in messages %}USER: {% for c in m['content'] %}{% if c['type'] == 'image' %}<image>\n"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:"
    "{% endif %}"
)


def tokenizer() -> Any:
    import tokenizers
    from tokenizers import models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "USER", "ASSISTANT", ":", *WORDS]
    backend = tokenizers.Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )


def tiny_llava(folder: Path, *, ends: str = "") -> Path:
    """ends  the word that the end token is as likely as; none: it talks on"""
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    words = tokenizer()
    side = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**side, image_size=16, patch_size=8)
    text = LlamaConfig(**side, vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=256)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=words.convert_tokens_to_ids("<image>"),
            image_seq_length=4,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        model.lm_head.weight[:8] = 0  # special tokens and roles are not liked
        if ends:
            model.lm_head.weight[2] = model.lm_head.weight[words.convert_tokens_to_ids(ends)]
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.bos_token_id = words.bos_token_id
    model.generation_config.repetition_penalty = 7.0  # would change what is drawn
    model.save_pretrained(folder)
    LlavaProcessor(
        LlavaImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    return folder
