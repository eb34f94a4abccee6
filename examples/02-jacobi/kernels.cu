#include <oxshmem/oxshmem.h>

// Computes the rows `first` to `last` of `out` from `in`: each inner value becomes the mean of its
// four neighbours. `width` values make a row.
OXSHMEM_BOUNDED_KERNEL(256, relax, const float *in, float *out, uint64_t width, uint64_t first, uint64_t last) {
    const uint64_t inner = width - 2, values = (last - first) * inner;
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < values; i += gridDim.x * blockDim.x) {
        const uint64_t at = (first + i / inner) * width + 1 + i % inner;
        out[at] = 0.25f * (in[at - width] + in[at + width] + in[at - 1] + in[at + 1]);
    }
}

// Sends the first and the last row of this PE to its neighbours, each with a signal, and waits for
// theirs. Block 0 talks to the PE above and block 1 to the PE below; a neighbour of -1 is none.
//
// A field has `rows` rows of this PE, with the row of the neighbour above before them and that of
// the neighbour below after them. `above_rows` is how many rows the PE above has. `signals[0]`
// counts the rows that have come from above, `signals[1]` those from below.
OXSHMEM_BOUNDED_KERNEL(256, exchange, float *field, uint64_t width, uint64_t rows, int above, int below, uint64_t above_rows,
                       uint64_t *signals, uint64_t step) {
    const bool up = blockIdx.x == 0;
    const int neighbour = up ? above : below;
    if (neighbour < 0) {
        return;
    }
    const float *row = field + (up ? 1 : rows) * width;
    float *there = field + (up ? above_rows + 1 : 0) * width;
    // What goes up arrives there from below.
    oxshmem::put_signal(oxshmem::block, there, row, width, signals + (up ? 1 : 0), step, oxshmem::SIGNAL_SET, neighbour);
    if (threadIdx.x == 0) {
        oxshmem::signal_wait_until(signals + (up ? 0 : 1), oxshmem::CMP_GE, step);
    }
}
