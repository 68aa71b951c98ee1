"""Triton kernels that draw a token for each row of logits: greedy, or by Gumbel noise; draws.py is the definition.

One pass over the logits in stretches of the vocabulary, then one over what the stretches found. A row with a logit that
is not finite is told apart and draws 0.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _token_bits(row_bits, token):
    """64 random bits for each token of a row: mix(row_bits + (token + 1) x golden), as ../draws.py has it."""
    x = row_bits + (token + 1).to(tl.uint64) * _GOLDEN
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def _search_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    bits: tl.tensor,
    scores: tl.tensor,
    tokens: tl.tensor,
    is_finite: tl.tensor,
    vocab_size: tl.tensor,
    row_stride: tl.tensor,
    BLOCK: tl.constexpr,
):
    """The best score of one stretch of one row, its token, and whether all logits there are finite."""
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = stretch * BLOCK + tl.arange(0, BLOCK)
    exists = token < vocab_size
    logit = tl.load(logits + row * row_stride + token, mask=exists, other=0.0)
    temperature = tl.load(temperatures + row)
    uniform = ((_token_bits(tl.load(bits + row).to(tl.uint64), token) >> 32).to(tl.float32) + 0.5) * 2.0**-32
    # -log1p(-u) for small u, where the likeliest winners lie, without cancellation.
    waiting = tl.where(uniform < 1e-3, uniform * (1.0 + 0.5 * uniform), -tl.log(tl.maximum(1.0 - uniform, 2.0**-24)))
    is_greedy = temperature <= 0.0
    score = tl.where(is_greedy, logit, logit / tl.where(is_greedy, 1.0, temperature) - tl.log(waiting))
    bad = exists & ~(tl.abs(logit) < float("inf"))
    score = tl.where(exists & ~bad, score, float("-inf"))
    place = row * tl.num_programs(1) + stretch
    tl.store(scores + place, tl.max(score, axis=0))
    tl.store(tokens + place, stretch * BLOCK + tl.argmax(score, axis=0).to(tl.int32))
    tl.store(is_finite + place, 1 - tl.max(bad.to(tl.int32), axis=0))


@triton.jit
def _choose_kernel(
    scores: tl.tensor,
    tokens: tl.tensor,
    is_finite: tl.tensor,
    out: tl.tensor,
    num_stretches: tl.tensor,
    BLOCK: tl.constexpr,
):
    """One row a program: the best stretch's token. out: [2, rows], tokens and whether the rows are finite."""
    row = tl.program_id(0)
    stretch = tl.arange(0, BLOCK)
    exists = stretch < num_stretches
    place = row * num_stretches + stretch
    score = tl.load(scores + place, mask=exists, other=float("-inf"))
    good = tl.min(tl.load(is_finite + place, mask=exists, other=1), axis=0)
    best = tl.load(tokens + row * num_stretches + tl.argmax(score, axis=0))
    tl.store(out + row, tl.where(good > 0, best, 0))
    tl.store(out + tl.num_programs(0) + row, good)


def draw(logits: Tensor, temperatures: Tensor, bits: Tensor, out: Tensor) -> None:
    """logits [rows, vocab] float32; temperatures [rows] float32, 0 is greedy; bits [rows] int64. See gumbel.draw."""
    num_rows, vocab_size = logits.shape
    if not num_rows:
        return
    num_stretches = triton.cdiv(vocab_size, _BLOCK)
    shape, device = (num_rows, num_stretches), logits.device
    scores = torch.empty(shape, dtype=torch.float32, device=device)
    tokens, is_finite = (torch.empty(shape, dtype=torch.int32, device=device) for _ in range(2))
    _search_kernel[shape](
        logits, temperatures, bits, scores, tokens, is_finite, vocab_size, logits.stride(0), BLOCK=_BLOCK
    )
    _choose_kernel[(num_rows,)](
        scores, tokens, is_finite, out, num_stretches, BLOCK=triton.next_power_of_2(num_stretches)
    )
