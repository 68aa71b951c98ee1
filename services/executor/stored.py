"""A tensor as it lies in a model's file, whatever the file: rows of bytes, and the values that they stand for.

The arithmetic of dequantization is the `gguf` package's, exactly. Plain floats are three of its types, so weights that
were never quantized need no path of their own. Knows nothing of models.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

PLAIN = frozenset({GGMLQuantizationType.F32, GGMLQuantizationType.F16})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """shape: outermost dimension first; raw: [rows, bytes of a row]; path: the file it lies in, for errors."""

    name: str
    shape: tuple[int, ...]
    quantization: GGMLQuantizationType
    raw: NDArray[np.uint8]
    path: Path = Path()

    def floats(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows first..last as float32 [rows, row length], exactly as gguf.quants.dequantize gives them."""
        raw = self.raw[first:last]
        if self.quantization in PLAIN:
            return quants.dequantize(raw, self.quantization).reshape(last - first, self.shape[-1])
        # The package's own loop takes 16 rows at a time, too few to keep two threads busy; its block function is its
        # arithmetic.
        quant = getattr(quants, self.quantization.name)
        quant.init_grid()
        values: NDArray[np.float32] = quant.dequantize_blocks(raw.reshape(-1, quant.type_size))
        return values.reshape(last - first, self.shape[-1])


def is_readable(quantization: GGMLQuantizationType) -> bool:
    """Whether the `gguf` package knows what values of this type stand for."""
    return quantization in PLAIN or "dequantize_blocks" in vars(getattr(quants, quantization.name, object))
