"""How a command ends when a call fails: one line on stderr and an exit code, never a traceback.

Exit codes: 2 for a request that must change, 130 after ctrl-C, 1 for everything else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tandem.errors import ConnectionFailed, InvalidRequest, TandemError

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


@contextmanager
def told(address: str) -> Iterator[None]:
    """Turn failures of calls to a server into a line and an exit."""
    try:
        yield
    except TandemError as error:
        typer.echo(f"tandem: {line(error, address)}", err=True)
        raise typer.Exit(BAD_INPUT if isinstance(error, InvalidRequest) else FAILED) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(INTERRUPTED) from interrupt


def line(error: TandemError, address: str) -> str:
    """What to tell a person."""
    if isinstance(error, ConnectionFailed):
        return f"no server answers at {address}; `tandem serve` starts one, --address names another"
    hint = f" (try again in {error.retry_after_s:g} s)" if error.retry_after_s is not None else ""
    return f"{error}{hint}"
