"""C++ kernels for CPUs, compiled where they run. Each file's head says what it computes over which shapes."""
