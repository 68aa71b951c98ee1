"""Compile the check of the kernels (src/check.cpp) against a library of them, as the package's build left it.

The check is C++ that knows the C interface alone, so it runs where there is no Python: in an emulated machine, say.
"""

import subprocess
from pathlib import Path

SOURCES = Path(__file__).with_name("src")
INTERFACE = Path(__file__).parents[2] / "services" / "executor" / "native" / "src"
FLAGS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror")


def build_check(library: Path, program: Path) -> None:
    """program finds the library where it lies now."""
    linked = (str(library), f"-Wl,-rpath,{library.parent}")
    compile_program((*FLAGS, f"-I{INTERFACE}"), SOURCES / "check.cpp", program, linked)


def build_init(program: Path) -> None:
    """The first process of an emulated machine; it needs no library."""
    compile_program((*FLAGS, "-static"), SOURCES / "init.cpp", program)


def compile_program(flags: tuple[str, ...], source: Path, program: Path, linked: tuple[str, ...] = ()) -> None:
    """Raises CalledProcessError, with what the compiler said on standard error."""
    subprocess.run(["g++", *flags, "-o", str(program), str(source), *linked], check=True)
