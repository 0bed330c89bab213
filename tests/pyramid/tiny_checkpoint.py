"""A complete checkpoint of few weights: a grouped-query Llama, and a byte tokenizer without padding token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if mood is defined %}({{ mood }}){% endif %}{% endif %}"
)


def save_tiny(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE, **generation: Any) -> Path:
    """Save the checkpoint into `folder`; `generation` are further fields of its generation config.

    Ids: 0 <s>, 1 </s>, 2 <|eot|>, then the 256 bytes. Answers end at 1 and 2."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = ["<s>", "</s>", "<|eot|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<|eot|>"],
        chat_template=chat_template,
    )
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(vocabulary),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=512,
                bos_token_id=0,
                eos_token_id=1,
            )
        )
    model.generation_config.update(eos_token_id=[1, 2], **generation)
    model.save_pretrained(folder)
    return folder
