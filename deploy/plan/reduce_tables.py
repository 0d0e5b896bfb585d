# /// script
# requires-python = ">=3.11"
# dependencies = ["pyarrow"]
# ///
"""Makes the small tables in `data/` from the public ones they come from. `pyarrow` is no dependency of Mobula, so this
runs in an environment that is thrown away:

    python -m venv /tmp/reduce && /tmp/reduce/bin/pip install pyarrow
    /tmp/reduce/bin/python deploy/plan/reduce_tables.py FOLDER deploy/plan/data

FOLDER holds AIConfigurator's parquet files of the H200 and Vidur's CSV files of the H100, named as below. A reduced
table has one row for each point of its leading axes, one column for each value of its last axis, and microseconds in
its cells; a cell is empty where nothing was measured. No value is made up: rows are chosen, or medians are taken.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet

AICONFIGURATOR = "ai-dynamo/aiconfigurator at 095f58a5, measured on H200 SXM by NVIDIA, Apache-2.0; rows chosen"
VIDUR = "microsoft/vidur at 7d475133, measured on H100 DGX by Microsoft, MIT; medians"

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (*BATCHES, 1024, 2048, 4096, 8192, 16384)
FEATURES = (128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384)
OUT_FEATURES, IN_FEATURES = (*FEATURES, 65536), (*FEATURES, 51200)  # the largest pair that was measured
HEAD_DIMS = (64, 128)
KV_HEADS = (1, 2, 4, 8)
GROUPS = (1, 2, 4, 8, 16, 32)  # query heads that share a KV head
CONTEXTS = tuple(2**power for power in range(7, 18))

Point = tuple[int, ...]


def main(source: Path, target: Path) -> None:
    for name, axes, points, origin in (
        ("h200_gemm", "in_features,out_features,tokens", _gemm(source), AICONFIGURATOR),
        ("h200_decode_attention", "head_dim,kv_heads,group,batch,context", _decode_attention(source), AICONFIGURATOR),
        ("h200_prefill_attention", "head_dim,kv_heads,group,prompt", _prefill_attention(source), AICONFIGURATOR),
        ("h200_all_reduce", "ranks,bytes", _nccl(source, "all_reduce"), AICONFIGURATOR),
        ("h200_all_gather", "ranks,bytes", _nccl(source, "all_gather"), AICONFIGURATOR),
        ("h100_all_reduce", "ranks,bytes", _vidur(source, "all_reduce", "num_workers"), VIDUR),
        ("h100_send_recv", "ranks_in_node,bytes", _vidur(source, "send_recv", "devices_per_node"), VIDUR),
    ):
        _write(target / f"{name}.csv", axes.split(","), points, origin)


def _gemm(source: Path) -> dict[Point, float]:
    return {
        (row["k"], row["n"], row["m"]): row["latency"] * 1e3
        for row in _parquet(source / "h200_vllm0.24_gemm.parquet", gemm_dtype="bfloat16")
        if row["k"] in IN_FEATURES and row["n"] in OUT_FEATURES and row["m"] in TOKENS
    }


def _decode_attention(source: Path) -> dict[Point, float]:
    rows = _attention(source / "h200_vllm0.24_generation_attention.parquet")
    return {
        (*_heads(row), row["batch_size"], row["step"] + 1): row["latency"] * 1e3
        for row in rows
        if row["batch_size"] in BATCHES and row["step"] + 1 in CONTEXTS
    }


def _prefill_attention(source: Path) -> dict[Point, float]:
    rows = _attention(source / "h200_vllm0.24_context_attention.parquet")
    return {
        (*_heads(row), row["isl"]): row["latency"] * 1e3 for row in rows if row["batch_size"] == 1 and row["isl"] >= 16
    }


def _attention(file: Path) -> Iterable[dict[str, Any]]:
    for row in _parquet(file, attn_dtype="bfloat16", kv_cache_dtype="bfloat16", window_size=0):
        heads, kv_heads = row["num_heads"], row["num_key_value_heads"]
        if row["head_dim"] in HEAD_DIMS and kv_heads in KV_HEADS and heads / kv_heads in GROUPS:
            yield row


def _heads(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["head_dim"], row["num_key_value_heads"], row["num_heads"] // row["num_key_value_heads"]


def _nccl(source: Path, operation: str) -> dict[Point, float]:
    """`message_size` counts elements there, those of all ranks together in an all-gather."""
    rows = _parquet(source / "h200_nccl2.29.2.parquet", nccl_dtype="half", op_name=operation)
    return {(row["num_gpus"], row["message_size"] * 2): row["latency"] * 1e3 for row in rows}


def _vidur(source: Path, operation: str, axis: str) -> dict[Point, float]:
    """Sizes stand densely and single measurements scatter: medians over all sizes within a factor of two."""
    near: dict[Point, list[tuple[int, float]]] = defaultdict(list)
    with (source / f"vidur_h100_dgx_{operation}.csv").open() as file:
        for row in csv.DictReader(file):
            size = int(row["size"])
            near[int(row[axis]), size.bit_length()].append((size, float(row[f"time_stats.{operation}.median"]) * 1e3))
    return {
        (ranks, round(statistics.median(size for size, _ in values))): statistics.median(time for _, time in values)
        for (ranks, _), values in near.items()
    }


def _parquet(file: Path, **equal: Any) -> Iterable[dict[str, Any]]:
    filters = [(column, "=", value) for column, value in equal.items()]
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file, filters=filters).to_pylist()
    return rows


def _write(file: Path, axes: Sequence[str], points: Mapping[Point, float], origin: str) -> None:
    columns = sorted({point[-1] for point in points})
    with file.open("w", newline="") as out:
        out.write(f"# {origin}.\n# Columns: {axes[-1]}. Cells: microseconds.\n")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*axes[:-1], *columns])
        for row in sorted({point[:-1] for point in points}):
            cells = (points.get((*row, column)) for column in columns)
            writer.writerow([*row, *("" if cell is None else f"{cell:.4g}" for cell in cells)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
