"""Compiles every kernel for a Hopper GPU, on any machine: what the interpreter allows the compiler may still refuse.

Run as a program, since the interpreter must not have been chosen. Prints the bytes of machine code of each kernel.
"""

import json
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from services.executor.cuda import attention_kernels, draw_kernels, step_kernels

HOPPER = GPUTarget("cuda", 90, 32)
HEADS = {"NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": 128, "BLOCK_SIZE": 16, "N": 64, "D": 128}
ROWS = {"cu_seqlens_q": "*i32", "kv_lens": "*i32"}
TABLE = {"table": "*i32", "out": "*bf16"}
SCALES = {"scale": "fp32", "window": "i32", "q_stride": "i32", "table_stride": "i32"}
POOLS = {"q": "*bf16", "keys": "*bf16", "values": "*bf16"}
SPLIT = {"out": "*fp32", "sums": "*fp32"}

KERNELS: list[tuple[Any, dict[str, str], dict[str, Any]]] = [
    (
        step_kernels._add_normalize_kernel,
        {"hidden": "*bf16", "delta": "*bf16", "weight": "*bf16", "normed": "*bf16", "eps": "fp32", "size": "i32"},
        {"HAS_DELTA": True, "BLOCK": 4096},
    ),
    (
        step_kernels._rotate_and_store_kernel,
        {"qkv": "*bf16", "cos": "*fp32", "sin": "*fp32", "positions": "*i32", "cells": "*i32"}
        | {"keys": "*bf16", "values": "*bf16", "num_heads": "i32", "num_kv_heads": "i32"},
        {"HALF": 64, "BLOCK": 64},
    ),
    (step_kernels._gate_kernel, {"gate_up": "*bf16", "out": "*bf16", "size": "i32"}, {"BLOCK": 1024}),
    (
        attention_kernels._decode_kernel,
        POOLS | {"rows": "*i32"} | ROWS | TABLE | SPLIT | SCALES,
        HEADS | {"SPLITS": 4, "M": 16},
    ),
    (
        attention_kernels._decode_kernel,
        POOLS | {"rows": "*i32"} | ROWS | TABLE | {"sums": "*bf16"} | SCALES,
        HEADS | {"SPLITS": 1, "M": 16},
    ),
    (
        attention_kernels._combine_kernel,
        {"parts": "*fp32", "sums": "*fp32", "rows": "*i32", "cu_seqlens_q": "*i32", "out": "*bf16"},
        {"HEAD_DIM": 128, "SPLITS": 4, "D": 128},
    ),
    (attention_kernels._prefill_kernel, POOLS | {"tiles": "*i32"} | ROWS | TABLE | SCALES, HEADS | {"M": 64}),
    (
        draw_kernels._search_kernel,
        {"logits": "*fp32", "temperatures": "*fp32", "bits": "*i64", "scores": "*fp32", "tokens": "*i32"}
        | {"is_finite": "*i32", "vocab_size": "i32", "row_stride": "i32"},
        {"BLOCK": 1024},
    ),
    (
        draw_kernels._choose_kernel,
        {"scores": "*fp32", "tokens": "*i32", "is_finite": "*i32", "out": "*i32"} | {"num_stretches": "i32"},
        {"BLOCK": 128},
    ),
]


def main() -> None:
    """One JSON object; raises what the compiler raises."""
    sizes = {}
    for kernel, types, constants in KERNELS:
        wanted = kernel.arg_names
        signature = {name: types.get(name, "constexpr") for name in wanted}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        sizes[f"{kernel.__name__} {constants.get('SPLITS', '')}".strip()] = len(compile(source, HOPPER).asm["cubin"])
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
