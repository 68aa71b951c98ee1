"""The keys of the links: made at a server's first start, and the same ever after.

`python -m services.runtime.link_keys PATH` makes the file if it is not there, for services that start one by one, as
containers do: run it once before any of them.
"""

import sys
from pathlib import Path

from services.runtime.settings import SettingsError
from services.wire import keys
from services.wire.links import new_keys


def at(path: Path) -> Path:
    """The file, made if it is not there. Raises SettingsError when it cannot be used."""
    try:
        if not path.exists():
            keys.write(path, new_keys())
        keys.read(path)
    except keys.KeysError as error:
        raise SettingsError(f"links.keys: {error}") from error
    return path.absolute()


if __name__ == "__main__":
    try:
        print(at(Path(sys.argv[1])))
    except SettingsError as error:
        sys.exit(str(error))
