// Memory that a kernel needs while it runs: grows as needed and stays with the thread that asked.

#pragma once

#include <cstdint>
#include <cstdlib>

struct Scratch {
    char* bytes = nullptr;
    int64_t size = 0;

    char* of(int64_t wanted) {
        if (wanted > size) {
            std::free(bytes);
            size = (wanted + 63) / 64 * 64;
            bytes = static_cast<char*>(std::aligned_alloc(64, size));
        }
        return bytes;
    }

    ~Scratch() { std::free(bytes); }
};
