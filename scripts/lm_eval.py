"""lm-evaluation-harness's own command, with this harness's methods as its model `pyramid`.

    python -m scripts.lm_eval --model pyramid --model_args method=snapkv,budget=128 --tasks gsm8k_cot --limit 50

lm_eval finds models in a registry of its own that other packages can only enter by being imported, which its command
does not do; this one does, and leaves all else to lm_eval. `import scripts.lm_eval` does the same for programs that
call `lm_eval.simple_evaluate(model="pyramid", ...)`.

model_args: `method` and `budget`, the method's own parameters; `pretrained` (a folder, a GGUF file or a hub id; the
default model without it), `revision`, `dtype`, `attention`, `device_map`, `max_length`; `first_token`, `cache_heads`,
`max_gen_toks` and `seed`. lm_eval's own --batch_size and --device are heeded.
"""

from __future__ import annotations

import sys
from typing import Any

import lm_eval.models  # noqa: F401  lm_eval enters its own models only into a registry that is empty
from lm_eval.api.registry import register_model

from evaluation.lm_eval_model import PyramidLM

OF_MODEL = ("revision", "dtype", "attention", "device_map", "max_length")


@register_model("pyramid")
class Pyramid(PyramidLM):
    """A model and a method by name. Errors: ValueError for arguments that neither knows."""

    def __init__(
        self,
        *,
        method: str = "fullkv",
        budget: int | float | None = None,
        pretrained: str | None = None,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        first_token: str = "compressed",
        cache_heads: str = "kv",
        max_gen_toks: int = 256,
        seed: int = 0,
        **others: Any,
    ) -> None:
        import torch

        from pyramid import methods, models
        from pyramid.generation import Generator

        if not str(batch_size).isdigit() or max_batch_size is not None:
            raise ValueError(f"batch_size is {batch_size!r}; give a number, it is not found out here")
        described = {name: others.pop(name) for name in OF_MODEL if name in others}
        described |= {"id": pretrained} if pretrained else {}
        if device and (torch.cuda.is_available() or not device.startswith("cuda")):
            described["device"] = device  # lm_eval's command says cuda:0 unless it is told otherwise
        built = methods.build(method, budget=budget, **others)
        loaded = models.load(models.ModelSpec(**described))
        kernel: Any = loaded.model.config._attn_implementation
        generator: Any = Generator(
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            first_token=first_token,
            cache_heads=cache_heads,
            kernel=kernel,
        )
        super().__init__(
            generator=generator,
            method=built,
            tokenizer=loaded.tokenizer,
            max_length=loaded.max_length,
            max_gen_toks=max_gen_toks,
            batch_size=int(batch_size),
            seed=seed,
        )
        self.identity = loaded.identity

    def get_model_info(self) -> dict[str, Any]:
        """What lm_eval writes beside its results."""
        from pyramid import ENGINE_VERSION

        return {"model_identity": self.identity, "method": self.method.parameters(), "engine": ENGINE_VERSION}


def main() -> int:
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
