"""The tokenizer's files as one zip, sent in chunks with the digest of the whole on the last. Pure.

Same files, same bytes: every entry has the same date. smg takes at most 50 entries and 200 MB, by their plain names.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping

from smg_grpc_proto.generated import common_pb2

CHUNK_BYTES = 64 * 1024
_DATE = (1980, 1, 1, 0, 0, 0)


def archive(files: Mapping[str, bytes]) -> bytes:
    """The zip of some files, by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def chunks(packed: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """The messages that carry it."""
    last = (len(packed) - 1) // CHUNK_BYTES * CHUNK_BYTES
    for start in range(0, len(packed), CHUNK_BYTES):
        digest = hashlib.sha256(packed).hexdigest() if start == last else ""
        yield common_pb2.GetTokenizerChunk(data=packed[start : start + CHUNK_BYTES], sha256=digest)
