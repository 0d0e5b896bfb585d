// Makes a list of kernel calls.

#include "arguments.h"

namespace {

constexpr int64_t ROW = 17;

}  // namespace

// `calls` has rows of 17 numbers: the address of a kernel and its arguments.
extern "C" void mobula_run(const int64_t* calls, int64_t count) {
    for (const int64_t* call = calls; call < calls + count * ROW; call += ROW)
        reinterpret_cast<void (*)(const int64_t*)>(call[0])(call + 1);
}
