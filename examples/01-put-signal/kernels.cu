#include <oxshmem/oxshmem.h>

// Sends `rounds` messages of `n` words to the next PE, and adds up the messages of the previous PE.
// One block runs it.
//
// `arrived` holds the number of the last message that has arrived here. `credits` counts the
// messages that the next PE has read: message r may replace message r - 1 in its inbox once it has
// read that one.
OXSHMEM_BOUNDED_KERNEL(128, stream_messages, uint64_t *outbox, uint64_t *inbox, uint64_t n, uint64_t rounds, uint64_t *arrived,
                       uint64_t *credits, uint64_t *sums) {
    const int me = oxshmem::my_pe(), n_pes = oxshmem::n_pes();
    const int next = (me + 1) % n_pes, previous = (me + n_pes - 1) % n_pes;

    for (uint64_t round = 1; round <= rounds; ++round) {
        for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
            outbox[i] = 1000 * static_cast<uint64_t>(me) + round + i;
        }
        if (threadIdx.x == 0) {
            oxshmem::signal_wait_until(credits, oxshmem::CMP_GE, round - 1);
        }
        // The outbox is written, and there is a credit, for all threads.
        __syncthreads();

        // The next PE sees the message when it sees the signal. When the call returns, the outbox
        // may be written again.
        oxshmem::put_signal(oxshmem::block, inbox, outbox, n, arrived, round, oxshmem::SIGNAL_SET, next);

        if (threadIdx.x == 0) {
            oxshmem::signal_wait_until(arrived, oxshmem::CMP_GE, round);
        }
        __syncthreads();
        for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
            sums[i] += inbox[i];
        }
        // All threads have read the inbox: the previous PE may send the next message.
        __syncthreads();
        if (threadIdx.x == 0) {
            oxshmem::signal_op(credits, 1, oxshmem::SIGNAL_ADD, previous);
        }
    }
    // The last credits are delivered before the kernel ends.
    oxshmem::quiet(oxshmem::block);
}
