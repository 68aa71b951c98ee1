"""A small vocabulary for grammars: every byte but two is a token, a few longer texts are too, two tokens are ends."""

BYTES_WITHOUT_A_TOKEN = (4, 5)
LONGER = [b'{"', b'": ', b"true", b"aa", b"aaa", b"ab", b'"}', b", "]
ENDS = (300, 301)
SIZE = 302


class ToyVocabulary:
    """Ids 0-255 are bytes, then the longer texts; text is cut greedily, the bytes without a token are dropped."""

    vocab_size = SIZE
    eos_token_ids: tuple[int, ...] = ENDS

    def __init__(self) -> None:
        texts = [bytes([byte]) for byte in range(256)]
        for byte in BYTES_WITHOUT_A_TOKEN:
            texts[byte] = b""
        texts += LONGER
        self._ids = {text: token_id for token_id, text in enumerate(texts) if text}
        self._texts = texts + [b""] * (ENDS[0] - len(texts)) + [b"<end>", b"<stop>"]

    def token_bytes(self, token_id: int) -> bytes:
        return self._texts[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in ENDS

    def encode(self, text: str, parse_special: bool) -> list[int]:
        raw, token_ids = text.encode(), list[int]()
        while raw:
            longest = next((raw[:n] for n in (3, 2, 1) if raw[:n] in self._ids), b"")
            if longest:
                token_ids.append(self._ids[longest])
            raw = raw[max(1, len(longest)) :]
        return token_ids

    def text(self, token_ids: list[int]) -> str:
        return b"".join(self._texts[i] for i in token_ids if i not in ENDS).decode()
