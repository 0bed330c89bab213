"""A GGUF file becomes a folder with exactly its weights and its tokenizer, under every transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter, TokenType
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from pyramid.models import ModelSpec, load

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["a b", "1 2", "Ġ Ġ"]


@pytest.fixture
def model() -> LlamaForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(CONTROL) + 256 + len(MERGES),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=256,
                tie_word_embeddings=True,
            )
        ).eval()


def write_gguf(path: Path, model: LlamaForCausalLM, pre_tokenizer: str) -> Path:
    """The model in llama.cpp's format, which interleaves the two halves of each rotary pair."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = [*CONTROL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem in TOP:
            writer.add_tensor(f"{TOP[stem]}.weight", weight.numpy())
        elif stem.startswith("model.layers."):
            layer, part = stem.removeprefix("model.layers.").split(".", 1)
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                weight = weight.view(-1, 2, 4, 32).transpose(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{layer}.{NAMES[part]}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_weights_and_tokenizer_arrive_unchanged(
    tmp_path: Path, model: LlamaForCausalLM, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "small.gguf", model, "smollm")
    loaded = load(ModelSpec(id=str(path), device="cpu"))
    assert capfd.readouterr().err == "converting small.gguf (about half a minute, once)\n"
    ids = torch.tensor([[5, 40, 41, 200]])
    assert torch.equal(loaded.model(ids).logits, model(ids).logits)
    assert loaded.max_length == 256
    assert loaded.identity["id"] == "small.gguf" and loaded.identity["weights"] == "dequantised"

    tokenizer = loaded.tokenizer
    pieces = [tokenizer.decode([index]) for index in tokenizer.encode("ab  12")]
    assert pieces == ["ab", "  ", "1", "2"], "digits stay apart, although a pair of them could be merged"
    assert tokenizer.encode("<|im_start|>", special=True) == [1]
    assert tokenizer.stop_ids == (2,) and tokenizer.bos_id == 1

    path.touch()
    load(ModelSpec(id=str(path), device="cpu"))
    assert capfd.readouterr().err == ""
    assert len(list((cache / "models").glob("gguf-*[!k]"))) == 1


def test_a_tokenizer_that_is_not_known_is_refused(tmp_path: Path, model: LlamaForCausalLM) -> None:
    path = write_gguf(tmp_path / "small.gguf", model, "llama-bpe")
    with pytest.raises(ValueError, match="small.gguf cannot be converted: its tokenizer 'llama-bpe' is not"):
        load(ModelSpec(id=str(path)))
