"""The Llama family: Llama 2 and 3, SmolLM2, Mistral, Qwen2 and Qwen3 are one decoder with a few switches.

Pre-normalised blocks of grouped-query attention and a gated SiLU MLP. The switches are fields of `ModelConfig`:
biases, normalised queries and keys, sliding windows, a tied head. Weights carry the names that Hugging Face
checkpoints use; how the ranks divide them is the business of `parallel.layers`.

Shape suffixes: T tokens of the step, R rows to sample, H hidden, Q query heads, K KV heads, D head dimension,
F intermediate, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from parallel.layers import ColumnParallelLinear, Layer, Placement, RowParallelLinear, VocabParallelEmbedding
from parallel.mesh import Mesh
from parallel.sharding import Shard, WeightSlot, even_shard, kv_head_shard
from replicas.batch import ForwardBatch, KvLayer
from replicas.config import ModelConfig
from replicas.layers.attention import Attend
from replicas.layers.compute import TORCH, Compute
from replicas.layers.norm import RMSNorm
from replicas.layers.ops import CosSin, Ops
from replicas.layers.recorded import RecordedDecodes
from replicas.layers.rope import RotaryEmbedding
from replicas.models.layout import stage_layers

WeightSlots = Iterator[tuple[str, WeightSlot]]


class Attention(Layer):
    def __init__(self, prefix: str, config: ModelConfig, placement: Placement, ops: Ops) -> None:
        super().__init__()
        head_dim, mesh = config.head_dim, placement.mesh
        self.ops = ops
        query_heads = even_shard(config.num_heads, mesh, "num_attention_heads")
        kv_heads = kv_head_shard(config.num_kv_heads, mesh)
        self.head_dim = head_dim
        self.num_heads = query_heads.stop - query_heads.start
        self.num_kv_heads = kv_heads.stop - kv_heads.start
        parts = {
            f"{prefix}.q_proj": (config.num_heads * head_dim, _of_heads(query_heads, head_dim)),
            f"{prefix}.k_proj": (config.num_kv_heads * head_dim, _of_heads(kv_heads, head_dim)),
            f"{prefix}.v_proj": (config.num_kv_heads * head_dim, _of_heads(kv_heads, head_dim)),
        }
        self.qkv = ColumnParallelLinear(config.hidden_size, parts, config.qkv_bias, placement)
        out_shape = (config.hidden_size, config.num_heads * head_dim)
        self.out = RowParallelLinear(f"{prefix}.o_proj", out_shape, config.o_bias, placement)
        self.query_norm: RMSNorm | None = None
        self.key_norm: RMSNorm | None = None
        if config.qk_norm:
            self.query_norm = RMSNorm(f"{prefix}.q_norm", head_dim, config.rms_norm_eps, placement, ops)
            self.key_norm = RMSNorm(f"{prefix}.k_norm", head_dim, config.rms_norm_eps, placement, ops)

    def forward(
        self,
        x_TH: torch.Tensor,
        residual_TH: torch.Tensor,
        cos_sin: CosSin,
        slots_T: torch.Tensor,
        layer: KvLayer,
        attend: Attend,
    ) -> torch.Tensor:
        qkv_TC = self.qkv(x_TH)
        if self.query_norm is not None and self.key_norm is not None:
            heads_THD = qkv_TC.view(qkv_TC.size(0), -1, self.head_dim)
            query_TQD, key_TKD, _ = heads_THD.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
            query_TQD.copy_(self.query_norm(query_TQD))
            key_TKD.copy_(self.key_norm(key_TKD))
        query_TQD = self.ops.rotate_and_write(qkv_TC, cos_sin, slots_T, layer, self.num_heads)
        return self.out(attend(query_TQD, layer).flatten(1), residual_TH)

    def weight_slots(self) -> WeightSlots:
        yield from self.qkv.weight_slots()
        yield from self.out.weight_slots()
        if self.query_norm is not None and self.key_norm is not None:
            yield from self.query_norm.weight_slots()
            yield from self.key_norm.weight_slots()


class Mlp(Layer):
    def __init__(self, prefix: str, config: ModelConfig, placement: Placement, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        size = config.intermediate_size
        shard = even_shard(size, placement.mesh, "intermediate_size")
        parts = {f"{prefix}.gate_proj": (size, shard), f"{prefix}.up_proj": (size, shard)}
        self.gate_up = ColumnParallelLinear(config.hidden_size, parts, config.mlp_bias, placement)
        self.down = RowParallelLinear(f"{prefix}.down_proj", (config.hidden_size, size), config.mlp_bias, placement)

    def forward(self, x_TH: torch.Tensor, residual_TH: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate_up.gated(x_TH, self.ops.silu_mul), residual_TH)

    def weight_slots(self) -> WeightSlots:
        yield from self.gate_up.weight_slots()
        yield from self.down.weight_slots()


class DecoderLayer(Layer):
    def __init__(self, prefix: str, config: ModelConfig, placement: Placement, ops: Ops) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.attention_norm = RMSNorm(f"{prefix}.input_layernorm", size, eps, placement, ops)
        self.attention = Attention(f"{prefix}.self_attn", config, placement, ops)
        self.mlp_norm = RMSNorm(f"{prefix}.post_attention_layernorm", size, eps, placement, ops)
        self.mlp = Mlp(f"{prefix}.mlp", config, placement, ops)

    def forward(
        self,
        hidden_TH: torch.Tensor,
        cos_sin: CosSin,
        slots_T: torch.Tensor,
        layer: KvLayer,
        attend: Attend,
    ) -> torch.Tensor:
        hidden_TH = self.attention(self.attention_norm(hidden_TH), hidden_TH, cos_sin, slots_T, layer, attend)
        return self.mlp(self.mlp_norm(hidden_TH), hidden_TH)

    def weight_slots(self) -> WeightSlots:
        for part in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            yield from part.weight_slots()


class CausalLM(Layer):
    """One stage of the model, or all of it: the embedding belongs to the first stage, norm and head to the last.
    `compute` says how; layers with equal windows share one attention plan a step."""

    def __init__(
        self, config: ModelConfig, mesh: Mesh, dtype: torch.dtype, device: torch.device, compute: Compute = TORCH
    ) -> None:
        super().__init__()
        placement = Placement(mesh, dtype, device, compute.matrices)
        stage = stage_layers(config, mesh)
        self.config = config
        self.ops = compute.ops
        self.decodes = RecordedDecodes() if compute.records_decodes else None
        self.windows = [config.sliding_windows[index] for index in stage]
        self.embedding = _vocabulary("model.embed_tokens", config, placement) if mesh.is_first_stage else None
        self.layers = nn.ModuleList(
            DecoderLayer(f"model.layers.{index}", config, placement, self.ops) for index in stage
        )
        self.norm: RMSNorm | None = None
        self.head: VocabParallelEmbedding | None = None
        if mesh.is_last_stage:
            self.norm = RMSNorm("model.norm", config.hidden_size, config.rms_norm_eps, placement, self.ops)
            self.head = self.embedding if config.tie_word_embeddings else _vocabulary("lm_head", config, placement)
            if self.head is None:
                self.head = _vocabulary("model.embed_tokens", config, placement)
        self.rope = RotaryEmbedding(config, device)

    def forward(
        self, batch: ForwardBatch, kv_layers: Sequence[KvLayer], hidden_TH: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Computes the step's tokens through this stage's layers and writes their keys and values. Takes hidden_TH
        from the stage before, unless this is the first; returns it for the next one, or after the final norm."""
        if self.embedding is not None:
            hidden_TH = self.embedding(batch.token_ids_T)
        assert hidden_TH is not None, "a later stage needs the hidden states of the one before"
        cos_sin = self.rope(batch.positions_T, batch.rope_lengths_T, self.ops.rope_dtype(hidden_TH.dtype))
        if self.decodes is not None and self.decodes.takes(batch):
            hidden_TH = self.decodes.run(self._run_layers, hidden_TH, cos_sin, batch, kv_layers)
        else:
            attends = {window: self.ops.plan_attention(batch, kv_layers[0], window) for window in set(self.windows)}
            hidden_TH = self._run_layers(hidden_TH, cos_sin, batch.slots_T, kv_layers, attends)
        return hidden_TH if self.norm is None else self.norm(hidden_TH)

    def _run_layers(
        self,
        hidden_TH: torch.Tensor,
        cos_sin: CosSin,
        slots_T: torch.Tensor,
        kv_layers: Sequence[KvLayer],
        attends: Mapping[int, Attend],
    ) -> torch.Tensor:
        for decoder_layer, kv_layer, window in zip(self.layers, kv_layers, self.windows, strict=True):
            hidden_TH = decoder_layer(hidden_TH, cos_sin, slots_T, kv_layer, attends[window])
        return hidden_TH

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """logits_RV in float32, over the whole vocabulary on every rank of the last stage."""
        assert self.head is not None, "only the last stage has the head"
        return self.head.logits(hidden_RH)

    def weight_slots(self) -> dict[str, WeightSlot]:
        """The checkpoint tensors this rank reads, by name, and where each goes."""
        parts = {id(part): part for part in (self.embedding, *self.layers, self.norm, self.head) if part is not None}
        return {name: slot for part in parts.values() for name, slot in part.weight_slots()}


def _vocabulary(name: str, config: ModelConfig, placement: Placement) -> VocabParallelEmbedding:
    return VocabParallelEmbedding(name, config.vocab_size, config.hidden_size, placement)


def _of_heads(heads: Shard, head_dim: int) -> Shard:
    return Shard(0, heads.start * head_dim, heads.stop * head_dim)
