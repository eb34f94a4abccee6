// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A mixture of experts over both libraries, as apps/alltoall has it: each PE's tokens go to the PEs
// of the experts that were chosen for them (dispatch), and what those make of them comes back and
// is added up (combine). One launch does all iterations, and an iteration is both phases. A part of
// kernels.h.
#pragma once

namespace compare {

// Experts of each PE, and different experts of a token.
constexpr uint64_t kExperts = 8, kTop = 4;
constexpr uint32_t kMostPes = 64;
constexpr uint64_t kLabelBits = 32;

// What lies in dst, in this order.
struct MoeRoom {
    uint64_t pes, tokens, bytes; // tokens of each PE, and bytes of one: a multiple of 16

    // The most tokens that a PE can get from another.
    __host__ __device__ uint64_t capacity() const { return tokens * kTop; }
    // By token, the sum of what came back.
    __host__ __device__ uint64_t output() const { return 0; }
    // By choice, what came back.
    __host__ __device__ uint64_t returned() const { return output() + tokens * bytes; }
    // By PE, `capacity` places of a token.
    __host__ __device__ uint64_t inbox() const { return returned() + tokens * kTop * bytes; }
    // The same: which choice of which token it is, and the expert.
    __host__ __device__ uint64_t labels() const { return inbox() + pes * capacity() * bytes; }
    // By PE: what has arrived (see tally), what was answered, and places taken in the PE's inbox.
    __host__ __device__ uint64_t words() const { return labels() + pes * capacity() * sizeof(uint64_t); }
    __host__ __device__ uint64_t total() const { return words() + 3 * pes * sizeof(uint64_t); }
};

COMPARE_DEVICE uint64_t hash(uint64_t x) {
    x *= 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

// Choice `k` of a PE's token: an expert, each time another one. Low numbers are chosen more often,
// as some experts are.
COMPARE_DEVICE uint64_t chosen(uint64_t pe, uint64_t token, uint64_t k, uint64_t pes) {
    const uint64_t experts = pes * kExperts, random = hash(pe << 32 | token);
    const uint64_t one = (random >> 40) % experts, other = (random >> 16 & 0xffffff) % experts;
    const uint64_t step = 1 + (random & 0xffff) % ((experts - 1) / (kTop - 1));
    return ((one < other ? one : other) + k * step) % experts;
}

// What an expert adds to each word of a token in a turn.
COMPARE_DEVICE uint32_t expertise(uint64_t expert, uint64_t turn) {
    return static_cast<uint32_t>(hash(turn << 16 | expert));
}

// What is told to each PE at the end of a phase, by addition: how many blocks are through, in the
// upper half, and how many tokens they sent, in the lower. Both only grow.
COMPARE_DEVICE uint64_t tally(uint64_t blocks, uint64_t tokens) {
    return blocks << 32 | tokens;
}

// What the blocks of a launch need to know of each other and of other PEs.
struct Moe {
    MoeRoom room;
    char *dst;
    const char *tokens;
    uint64_t me, warp, warps; // the warp's number in the grid
    uint32_t *sent;           // shared, by PE: tokens that this block has sent in this phase
    uint64_t turn;

    COMPARE_DEVICE uint64_t *arrived() const { return reinterpret_cast<uint64_t *>(dst + room.words()); }
    COMPARE_DEVICE uint64_t *answered() const { return arrived() + room.pes; }
    COMPARE_DEVICE uint64_t *slots() const { return answered() + room.pes; }
    COMPARE_DEVICE char *returned(uint64_t choice) const { return dst + room.returned() + choice * room.bytes; }
    COMPARE_DEVICE char *inbox(uint64_t place) const { return dst + room.inbox() + place * room.bytes; }
    COMPARE_DEVICE uint64_t *label(uint64_t place) const { return reinterpret_cast<uint64_t *>(dst + room.labels()) + place; }
};

COMPARE_DEVICE void begin_phase(const Moe &m) {
    for (uint64_t pe = threadIdx.x; pe < m.room.pes; pe += blockDim.x) {
        m.sent[pe] = 0;
    }
    __syncthreads();
}

// Tells every PE how many tokens this block has sent to it, after them.
COMPARE_DEVICE void end_phase(const Moe &m, uint64_t *words) {
    __syncthreads();
    if (threadIdx.x == 0) {
        fence();
    }
    __syncthreads();
    for (uint64_t pe = threadIdx.x; pe < m.room.pes; pe += blockDim.x) {
        signal_add(words + m.me, tally(1, m.sent[pe]), static_cast<int>(pe));
    }
}

// Waits until all blocks of a PE are through; how many tokens it has sent since `before`, which is
// brought up to date. For all threads of the block. No tokens if the wait has failed, which the
// library records.
COMPARE_DEVICE uint64_t await_tally(uint64_t *word, uint64_t &before) {
    COMPARE_SHARED(uint64_t, seen);
    const uint64_t then = before;
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool came = signal_wait(word, tally((then >> 32) + gridDim.x, 0));
        seen = came ? *static_cast<volatile uint64_t *>(word) : then;
        before = seen;
    }
    __syncthreads();
    return (seen & 0xffffffff) - (then & 0xffffffff);
}

// Warps take choices in turn. A token's place in the inbox is the next free one.
COMPARE_DEVICE void dispatch(const Moe &m) {
    begin_phase(m);
    for (uint64_t choice = m.warp; choice < m.room.tokens * kTop; choice += m.warps) {
        const uint64_t expert = chosen(m.me, choice / kTop, choice % kTop, m.room.pes);
        const uint64_t pe = expert / kExperts;
        unsigned long long slot = 0;
        if (leads(warp)) {
            slot = atomicAdd(reinterpret_cast<unsigned long long *>(m.slots() + pe), 1ull);
            atomicAdd(m.sent + pe, 1u);
        }
        const uint64_t place = m.me * m.room.capacity() + __shfl_sync(0xffffffffu, slot, 0);
        put_nbi(warp, m.inbox(place), m.tokens + choice / kTop * m.room.bytes, m.room.bytes, static_cast<int>(pe));
        if (leads(warp)) {
            p(m.label(place), choice << kLabelBits | expert, static_cast<int>(pe));
        }
    }
    end_phase(m, m.arrived());
}

// Experts work on the tokens in place, and send each back to where it came from.
COMPARE_DEVICE void combine(const Moe &m, uint64_t *arrived) {
    begin_phase(m);
    for (uint64_t i = 0; i < m.room.pes; ++i) {
        const uint64_t pe = (m.me + i) % m.room.pes;
        const uint64_t tokens = await_tally(m.arrived() + pe, arrived[pe]);
        for (uint64_t slot = m.warp; slot < tokens; slot += m.warps) {
            const uint64_t place = pe * m.room.capacity() + slot, label = *m.label(place);
            const uint32_t more = expertise(label & 0xffffffff, m.turn);
            uint4 *const token = reinterpret_cast<uint4 *>(m.inbox(place));
            for (uint64_t at = threadIdx.x % 32; at < m.room.bytes / sizeof(uint4); at += 32) {
                const uint4 v = token[at];
                token[at] = {v.x + more, v.y + more, v.z + more, v.w + more};
            }
            meet(warp);
            put_nbi(warp, m.returned(label >> kLabelBits), m.inbox(place), m.room.bytes, static_cast<int>(pe));
            if (leads(warp)) {
                atomicAdd(m.sent + pe, 1u);
            }
        }
    }
    end_phase(m, m.answered());
}

// Each token's answers, added up by a warp.
COMPARE_DEVICE void add_up(const Moe &m) {
    for (uint64_t token = m.warp; token < m.room.tokens; token += m.warps) {
        uint4 *const to = reinterpret_cast<uint4 *>(m.dst + m.room.output() + token * m.room.bytes);
        for (uint64_t at = threadIdx.x % 32; at < m.room.bytes / sizeof(uint4); at += 32) {
            uint4 sum{0, 0, 0, 0};
            for (uint64_t k = 0; k < kTop; ++k) {
                const uint4 v = reinterpret_cast<const uint4 *>(m.returned(token * kTop + k))[at];
                sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
            }
            to[at] = sum;
        }
    }
}

// `run`: bytes of a token, and stride tokens of each PE; dst has what MoeRoom says, src the tokens,
// from shift() on. What is overwritten in an iteration has been used: a PE sends its next tokens
// after it has got back all of the last ones, and answers them after it has got them.
COMPARE_DEVICE void moe(const Run &run) {
    COMPARE_SHARED(uint64_t, arrived, [kMostPes]);
    COMPARE_SHARED(uint64_t, answered, [kMostPes]);
    COMPARE_SHARED(uint32_t, sent, [kMostPes]);
    const uint64_t pes = static_cast<uint64_t>(n_pes());
    uint64_t *const word = run.clock + 2 * gridDim.x;
    uint64_t round = 0;
    Moe m{{pes, run.stride, run.bytes}, run.dst, run.src, static_cast<uint64_t>(my_pe()), group(warp), groups(warp), sent, 0};

    for (uint64_t pe = threadIdx.x; pe < pes; pe += blockDim.x) {
        arrived[pe] = 0;
        answered[pe] = 0;
    }
    if (blockIdx.x == 0) {
        for (uint64_t i = threadIdx.x; i < 3 * pes; i += blockDim.x) {
            m.arrived()[i] = 0;
        }
        __syncthreads();
        barrier_all(block);
    }
    meet_grid(word, round);
    timed(run, [&](uint64_t i) {
        m.tokens = run.src + shift(i);
        m.turn = run.base + i;
        dispatch(m);
        combine(m, arrived);
        for (uint64_t pe = 0; pe < pes; ++pe) {
            await_tally(m.answered() + pe, answered[pe]);
        }
        // All blocks of this PE have taken their places: this PE's word says so too.
        if (blockIdx.x == 0) {
            for (uint64_t pe = threadIdx.x; pe < pes; pe += blockDim.x) {
                m.slots()[pe] = 0;
            }
        }
        add_up(m);
        meet_grid(word, round);
    });
}

} // namespace compare
