"""Builds the C++ kernels where a compiler is found; without one the package still installs.

Everything else about the package is in pyproject.toml.
"""

import platform
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CPU = Path("common/kernels/cpu")
STABLE_ABI = sys.version_info >= (3, 12)  # what nanobind needs of it: one module for all later ones
LIMITED_API = "0x030C0000"


class BuildKernels(build_ext):
    """Adds nanobind, which is a source file of its own: as an absolute path it is not allowed."""

    def build_extension(self, ext: Extension) -> None:
        try:
            import nanobind
        except ImportError as error:  # without build isolation; `optional` forgives this one
            raise CompileError("nanobind is missing") from error
        include = Path(nanobind.include_dir())
        ext.include_dirs += [str(include), str(include.parent / "ext" / "robin_map" / "include")]
        source = Path(self.build_temp) / "nb_combined.cpp"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f'#include "{Path(nanobind.source_dir()) / "nb_combined.cpp"}"\n')
        ext.sources.append(str(source))
        super().build_extension(ext)


NATIVE = Extension(
    "common.kernels.cpu._native",
    sources=sorted(str(path) for path in CPU.glob("*.cpp")),
    depends=sorted(str(path) for path in CPU.glob("*.h")),
    language="c++",
    extra_compile_args=[
        "-std=c++17",
        "-O3",
        "-g0",
        "-ffp-contract=off",  # a * b + c is rounded as written, whatever the compiler (law 3)
        "-fno-math-errno",
        "-fno-strict-aliasing",
        "-fvisibility=hidden",
        "-pthread",
    ],
    extra_link_args=["-pthread"],
    define_macros=[
        ("NDEBUG", None),
        ("BATON_SOURCES", f'"{runpy.run_path(str(CPU / "sources.py"))["digest"](CPU)}"'),
        *([("Py_LIMITED_API", LIMITED_API)] if STABLE_ABI else []),
    ],
    py_limited_api=STABLE_ABI,
    optional=True,
)

setup(
    ext_modules=[NATIVE] if platform.machine() in ("x86_64", "AMD64") else [],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp312"}} if STABLE_ABI else {},
)
