#include <oxshmem/oxshmem.h>

// The matrix has n rows and columns, and each PE has `rows` rows of it. A tile is what one PE sends
// to another: `rows` times `rows` values, already transposed.

// Puts the tile for PE p at outbox + p * rows * rows.
OXSHMEM_BOUNDED_KERNEL(256, pack, const int *matrix, int *outbox, uint64_t rows, uint64_t n) {
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += gridDim.x * blockDim.x) {
        const uint64_t row = i / n, column = i % n;
        const uint64_t pe = column / rows, tile_row = column % rows;
        outbox[pe * rows * rows + tile_row * rows + row] = matrix[i];
    }
}

// Puts the tile from PE p into the columns p * rows to (p + 1) * rows.
OXSHMEM_BOUNDED_KERNEL(256, unpack, const int *inbox, int *matrix, uint64_t rows, uint64_t n) {
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += gridDim.x * blockDim.x) {
        const uint64_t pe = i / (rows * rows), tile_row = i / rows % rows, tile_column = i % rows;
        matrix[tile_row * n + pe * rows + tile_column] = inbox[i];
    }
}
