"""A GGUF file with its weights in Q4_0, the form that llama.cpp is fastest with. Runs with an interpreter that has
`llama-cpp-python`: the file to read, the file to write."""

from __future__ import annotations

import ctypes
import sys


def main(source: str, target: str) -> None:
    import llama_cpp

    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    options.allow_requantize = True
    if status := llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(options)):
        sys.exit(f"{source} cannot be requantized: llama.cpp answers {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
