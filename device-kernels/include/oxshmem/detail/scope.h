// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Scopes: which threads call an operation together. Every lane of the scope calls with the same
// arguments.
#pragma once

#include <oxshmem/port/port.h>

namespace oxshmem {

// `rank` and `size` of the calling lane, `sync`, and `last`: the lane that speaks for all when they
// are through. Short copies leave the last warp out, so it can wait for a fence while the others
// begin with what comes next.

// One thread on its own.
struct thread_scope {
    static constexpr uint32_t kLanes = 1; // whose accesses should be adjacent
    static constexpr bool kSeveralWarps = false;
    OXSHMEM_DEVICE static uint32_t rank() { return 0; }
    OXSHMEM_DEVICE static uint32_t size() { return 1; }
    OXSHMEM_DEVICE static uint32_t last() { return 0; }
    OXSHMEM_DEVICE static void sync() {}
    OXSHMEM_DEVICE static bool any(bool said) { return said; }
};

// The threads of a warp: 32, or what is left of the block in its last warp.
struct warp_scope {
    static constexpr uint32_t kLanes = 32; // whose accesses should be adjacent
    static constexpr bool kSeveralWarps = false;
    OXSHMEM_DEVICE static uint32_t rank() { return port::lane_id(); }
    OXSHMEM_DEVICE static uint32_t size() {
        const uint32_t first = port::thread_rank() & ~31u;
        const uint32_t left = port::block_threads() - first;
        return left < 32 ? left : 32;
    }
    OXSHMEM_DEVICE static uint32_t last() { return 0; }
    // Lanes that a last warp does not have count as exited.
    OXSHMEM_DEVICE static void sync() { port::sync_warp(~0u); }
    // sync, and whether any lane says so.
    OXSHMEM_DEVICE static bool any(bool said) {
        sync();
        return port::ballot(~0u, said) != 0;
    }
};

// All threads of the block.
struct block_scope {
    static constexpr uint32_t kLanes = 32; // whose accesses should be adjacent
    static constexpr bool kSeveralWarps = true;
    OXSHMEM_DEVICE static uint32_t rank() { return port::thread_rank(); }
    OXSHMEM_DEVICE static uint32_t size() { return port::block_threads(); }
    OXSHMEM_DEVICE static uint32_t last() { return (port::block_threads() - 1) & ~31u; }
    OXSHMEM_DEVICE static void sync() { port::sync_block(); }
    OXSHMEM_DEVICE static bool any(bool said) { return port::sync_block_any(said); }
};

// All threads of all blocks of the grid, which run at the same time. `sync` and `any` are those of
// a block: what makes blocks wait for each other is a call on a team (detail/grid.h).
struct grid_scope {
    static constexpr uint32_t kLanes = 32;
    static constexpr bool kSeveralWarps = true;
    OXSHMEM_DEVICE static uint32_t rank() { return port::block_rank() * port::block_threads() + port::thread_rank(); }
    OXSHMEM_DEVICE static uint32_t size() { return port::grid_blocks() * port::block_threads(); }
    OXSHMEM_DEVICE static void sync() { port::sync_block(); }
    OXSHMEM_DEVICE static bool any(bool said) { return port::sync_block_any(said); }
};

namespace detail {

// How many blocks of the grid share a collective: those that have room in a team's workspace.
OXSHMEM_DEVICE uint32_t sharing_blocks() {
    const uint32_t blocks = port::grid_blocks(), most = port::state().collective_blocks;
    return blocks < most ? blocks : most;
}

// All threads of the blocks of a grid that share a collective straight between buffers, which
// divide the data among them. All blocks of all members meet (detail/grid_meet.h). `sync` and `any`
// are those of a block.
struct blocks_scope {
    static constexpr uint32_t kLanes = 32;
    static constexpr bool kSeveralWarps = true;
    OXSHMEM_DEVICE static uint32_t rank() { return port::block_rank() * port::block_threads() + port::thread_rank(); }
    OXSHMEM_DEVICE static uint32_t size() { return sharing_blocks() * port::block_threads(); }
    OXSHMEM_DEVICE static uint32_t last() { return block_scope::last(); }
    OXSHMEM_DEVICE static void sync() { port::sync_block(); }
    OXSHMEM_DEVICE static bool any(bool said) { return port::sync_block_any(said); }
};

// The same for a collective by packets, where block b meets block b of the other PEs. It has
// functions of its own, because what calls others between the meetings keeps registers in memory.
struct packet_blocks : blocks_scope {};

// The same where members pass on what they receive: the others have fewer instructions and
// registers without that.
struct relay_blocks : packet_blocks {};

// The same in a team of several nodes, where blocks meet by messages (detail/levels.h).
struct levels_scope : blocks_scope {};

// The same for grids that begin with their call, as the host's do: they have stored nothing before.
// Block b meets block b of the other PEs, so no block waits for another one of its grid, and the
// blocks need not be resident at once.
struct opening_blocks : blocks_scope {};
template <class Scope> constexpr bool kOpensGrid = false;
template <> inline constexpr bool kOpensGrid<opening_blocks> = true;

// The threads that meet those of other PEs on behalf of a scope: its own, or those of one block.
template <class Scope> struct meeting_of { using type = Scope; };
template <> struct meeting_of<blocks_scope> { using type = block_scope; };
template <> struct meeting_of<packet_blocks> { using type = block_scope; };
template <> struct meeting_of<relay_blocks> { using type = block_scope; };
template <> struct meeting_of<opening_blocks> { using type = block_scope; };
template <> struct meeting_of<levels_scope> { using type = block_scope; };
template <class Scope> using Meeting = typename meeting_of<Scope>::type;

template <class Scope> constexpr bool kSeveralBlocks = false;
template <> inline constexpr bool kSeveralBlocks<blocks_scope> = true;
template <> inline constexpr bool kSeveralBlocks<packet_blocks> = true;
template <> inline constexpr bool kSeveralBlocks<relay_blocks> = true;
template <> inline constexpr bool kSeveralBlocks<opening_blocks> = true;
template <> inline constexpr bool kSeveralBlocks<levels_scope> = true;

// Whether the blocks meet all blocks of all members, whether they send packets, and whether they
// pass them on.
template <class Scope> constexpr bool kInGrid = false;
template <> inline constexpr bool kInGrid<blocks_scope> = true;
template <class Scope> constexpr bool kByPackets = false;
template <> inline constexpr bool kByPackets<packet_blocks> = true;
template <> inline constexpr bool kByPackets<relay_blocks> = true;
template <class Scope> constexpr bool kRelays = false;
template <> inline constexpr bool kRelays<relay_blocks> = true;

template <class Scope> constexpr bool kByLevels = false;
template <> inline constexpr bool kByLevels<levels_scope> = true;

// What meets by messages: a thread for its scope, or one of each of several blocks.
template <bool kSeveral> struct rounds_of { using type = thread_scope; };
template <> struct rounds_of<true> { using type = levels_scope; };

// Whether the scope is the grid: its calls are those of its blocks, and not instances of the code
// for other scopes.
template <class Scope> constexpr bool kIsGrid = false;
template <> inline constexpr bool kIsGrid<grid_scope> = true;

} // namespace detail

constexpr thread_scope thread{};
constexpr warp_scope warp{};
constexpr block_scope block{};
constexpr grid_scope grid{};

} // namespace oxshmem
