"""Check the kernels, as the package's build left them, on a processor of another model, emulated by Bochs.

Prints what the check prints and ends with its status. docs/kernels.md names the models for each variant.
"""

import argparse
import re
import shlex
import sys
import tempfile
from pathlib import Path

from services.executor.native.binding import built_library
from tests.emulation.build import build_check, build_init
from tests.emulation.machine import Machine, boot, initial_files


def main() -> int:
    """The status of the check; 1 when the machine never got to its end."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulation", description=__doc__)
    parser.add_argument("--kernel", type=Path, required=True, help="a Linux kernel with a serial console built in")
    parser.add_argument("--cpu", default="sapphire_rapids", help="a model that bochs knows (default %(default)s)")
    parser.add_argument("--bochs", default="bochs", help="the program, with what runs it (default %(default)s)")
    parser.add_argument("--display", default="nogui", help="bochs's display_library (default %(default)s)")
    parser.add_argument("arguments", nargs="*", help="of the check: rounds, seed, variant")
    options = parser.parse_args()
    machine = Machine(tuple(shlex.split(options.bochs)), options.kernel, options.cpu, options.display)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        build_check(built_library(), directory / "check")
        build_init(directory / "init")
        files = directory / "files"
        initial_files({"check": directory / "check", "init": directory / "init"}, files)
        serial = boot(machine, files, options.arguments, directory)
        printed = serial.read_text(errors="replace") if serial.exists() else ""
    print(printed, end="")
    ended = re.search(r"the check ended with status (\d+)", printed)
    return int(ended[1]) if ended else 1


if __name__ == "__main__":
    sys.exit(main())
