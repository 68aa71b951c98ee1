"""The numbers of rows that decode steps are captured for, and which of them a step takes.

Few rows have a bucket each, or nearly; from 16 on every eighth number has one.
"""

from services.executor.batch import StepBatch

_FEW = (1, 2, 4, 8, 12, 16)
_STRIDE = 8


def buckets_up_to(most: int) -> tuple[int, ...]:
    """Rising, the last of them `most`; none for 0."""
    if most <= 0:
        return ()
    strided = range(_FEW[-1] + _STRIDE, most, _STRIDE)
    return (*(bucket for bucket in _FEW if bucket < most), *strided, most)


def bucket_of(batch: StepBatch, buckets: tuple[int, ...]) -> int | None:
    """The smallest bucket that holds a step of one token a row; None for any other step, or a larger one."""
    if not batch.num_rows or batch.num_tokens != batch.num_rows:
        return None
    return next((bucket for bucket in buckets if bucket >= batch.num_rows), None)
