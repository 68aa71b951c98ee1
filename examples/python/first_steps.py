"""Tandem from synchronous code: wait for the server, complete a text, read a stream, chat, and meet an error.

Usage: python examples/python/first_steps.py [ADDRESS]
"""

import sys

from tandem import Client, errors


def main(address: str) -> None:
    """Every call once."""
    with Client(address) as client:
        model = client.wait_until_ready(timeout_s=60)
        print(f"model: {model.name}, context {model.context_length} tokens")

        answer = client.generate("The capital of France is", max_tokens=8, temperature=0)
        print(f"generate: {answer.text!r}, {answer.usage.completion_tokens} tokens")

        # A stream is read to its end or closed, which `with` does: then the server stops working for it.
        with client.stream_generate("One, two, three,", max_tokens=12, temperature=0) as stream:
            print("stream:", "".join(chunk.text for chunk in stream))

        turn = client.chat([{"role": "user", "content": "Say hello."}], max_tokens=12, temperature=0, timeout_s=60)
        print(f"chat: {turn.text!r}, finished by {turn.completions[0].finish.reason}")

        try:
            client.generate("Hello", temperature=-1)
        except errors.InvalidRequest as error:
            print(f"refused: {error.reason}, {dict(error.fields)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
