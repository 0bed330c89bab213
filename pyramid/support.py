"""Which models the library can compress, told from the configuration alone, before any weights are fetched.

Compression replaces the attention function and keeps plain keys and values. A layer that hides keys by a
window, adds sinks to its logits or caps them, or has none, would run without that part and answer nonsense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LEARNED_SINKS = ("flint", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash")


def refuse_unsupported(config: PretrainedConfig) -> None:
    """Errors: ValueError with one sentence if compression would not be exact for this configuration."""
    reason = _reason(config)
    if reason:
        raise ValueError(
            f"models of type {config.model_type!r} with {reason} are not supported: "
            f"choose a decoder-only model whose layers all use full attention"
        )


def model_class(config: PretrainedConfig) -> Any | None:
    """transformers' class for causal language modelling with this configuration, if there is one."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    chosen = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return chosen[0] if isinstance(chosen, tuple) else chosen


def _reason(config: PretrainedConfig) -> str | None:
    if config.is_encoder_decoder:
        return "an encoder and a decoder"
    found = model_class(config)
    if found is None:
        return "no causal language model in transformers"
    text = config.get_text_config(decoder=True)
    values = text.to_dict()
    other = sorted({kind for kind in getattr(text, "layer_types", None) or () if kind != "full_attention"})
    if other:
        return f"layers of type {', '.join(other)}"
    if getattr(found, "_is_stateful", False):
        return "recurrent or linear-attention layers"
    if values.get("kv_lora_rank"):
        return "multi-head latent attention"
    if values.get("attn_logit_softcapping"):
        return "soft-capped attention logits"
    if text.model_type in LEARNED_SINKS:
        return "learned attention sinks"
    if _slides(values):
        return f"a sliding window of {values['sliding_window']} tokens"
    if not getattr(found, "_supports_attention_backend", False):
        return "an attention of its own that cannot be exchanged"
    return None


def _slides(values: dict[str, Any]) -> bool:
    """Whether some layer forgets old tokens; where layers' types are listed, those were judged already."""
    window, limit = values.get("sliding_window"), values.get("max_position_embeddings")
    if not window or values.get("layer_types"):
        return False
    return limit is None or window < limit
