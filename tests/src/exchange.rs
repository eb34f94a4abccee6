//! What the PEs of `kernels/linked.cu` know of its kernel `exchange`, which is run both compiled as
//! a whole and linked with the device library.

/// Threads of its one block.
pub const THREADS: u32 = 64;
/// The bytes of each of the three parts of `data`: several chunks of the heap, and none of them
/// full.
pub const BYTES: usize = (2 << 20) + 4321;
/// The bytes of memory that is not in the heap.
pub const SPARE: usize = 5000;
/// The words of a `Board`, of 8 bytes.
pub const BOARD_WORDS: usize = 21 + (8 + 4 + 2 + 1) * THREADS as usize / 8;

/// Checks what a PE's board has in the end that the kernel does not check itself: the words that
/// its peers changed by atomics.
///
/// # Panics
/// They are others.
pub fn check_board(board: &[u64]) {
    const SMALL: usize = 20;
    let [sum, fetched, swapped] = [board[1], board[2], board[3]];
    assert_eq!([sum, fetched, swapped], [42, 5, 8]);
    assert_eq!([board[SMALL] as u32, (board[SMALL] >> 32) as u32], [11, 7]);
}
