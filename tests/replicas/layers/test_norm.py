from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from parallel.layers import Placement
from parallel.mesh import Mesh
from replicas.layers.norm import RMSNorm
from replicas.layers.ops import TorchOps
from tests.support.checkpoints import fill


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 200.0])
def test_equals_transformers_in_every_dtype(dtype: torch.dtype, scale: float) -> None:
    """200 squared overflows float16 when summed over 48: the sum must be made in float32."""
    torch.manual_seed(0)
    weight, x = torch.randn(48, dtype=dtype), (torch.randn(5, 48) * scale).to(dtype)
    reference = LlamaRMSNorm(48, eps=1e-5).to(dtype)
    reference.weight.data.copy_(weight)
    norm = RMSNorm("norm", 48, 1e-5, Placement(Mesh(), dtype, torch.device("cpu")), TorchOps())
    fill(norm.weight_slots(), {"norm.weight": weight})
    assert torch.equal(norm(x), reference(x))
