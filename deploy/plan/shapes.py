"""Shapes of well-known models, from the config.json that each publishes: enough to plan, and nothing to download."""

from __future__ import annotations

from replicas.config import ModelConfig


def _shape(
    architecture: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    max_positions: int,
    head_dim: int = 128,
    tied: bool = False,
) -> ModelConfig:
    return ModelConfig(
        architecture=f"{architecture}ForCausalLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        tie_word_embeddings=tied,
        qkv_bias=architecture == "Qwen2",
        o_bias=False,
        mlp_bias=False,
        qk_norm=architecture == "Qwen3",
        sliding_windows=(0,) * num_layers,
        dtype="bfloat16",
        bos_token_id=None,
        eos_token_ids=(),
    )


SHAPES = {
    "llama-3.2-1b": _shape("Llama", 128256, 2048, 8192, 16, 32, 8, 131072, head_dim=64, tied=True),
    "llama-3.2-3b": _shape("Llama", 128256, 3072, 8192, 28, 24, 8, 131072, tied=True),
    "llama-3.1-8b": _shape("Llama", 128256, 4096, 14336, 32, 32, 8, 131072),
    "llama-3.3-70b": _shape("Llama", 128256, 8192, 28672, 80, 64, 8, 131072),
    "llama-3.1-405b": _shape("Llama", 128256, 16384, 53248, 126, 128, 8, 131072),
    "mistral-7b-v0.3": _shape("Mistral", 32768, 4096, 14336, 32, 32, 8, 32768),
    "qwen2.5-7b": _shape("Qwen2", 152064, 3584, 18944, 28, 28, 4, 32768),
    "qwen2.5-72b": _shape("Qwen2", 152064, 8192, 29568, 80, 64, 8, 32768),
    "qwen3-0.6b": _shape("Qwen3", 151936, 1024, 3072, 28, 16, 8, 40960, tied=True),
    "qwen3-8b": _shape("Qwen3", 151936, 4096, 12288, 36, 32, 8, 40960),
    "qwen3-14b": _shape("Qwen3", 151936, 5120, 17408, 40, 40, 8, 40960),
    "qwen3-32b": _shape("Qwen3", 151936, 5120, 25600, 64, 64, 8, 40960),
}
