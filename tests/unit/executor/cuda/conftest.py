"""Triton's kernels run in its interpreter here, which must be chosen before they are defined."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
