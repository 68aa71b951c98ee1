"""What pyproject.toml cannot say: the native kernels, which are built when there is a compiler and done without if not.

One extension of several instruction sets; each source chooses its own, and the processor is asked at run time.
"""

from glob import glob

from setuptools import Extension, setup

SOURCES = "services/executor/native/src"

setup(
    ext_modules=[
        Extension(
            "services.executor.native._kernels",
            sources=sorted(glob(f"{SOURCES}/*.cpp")),
            depends=sorted(glob(f"{SOURCES}/*.h")),
            language="c++",
            extra_compile_args=[
                "-std=c++20",
                "-O3",
                "-g0",
                "-fopenmp",
                "-fno-math-errno",
                "-Wno-uninitialized",
                "-Wno-maybe-uninitialized",
            ],
            extra_link_args=["-fopenmp"],
            optional=True,
        )
    ]
)
