// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The port layer: everything that differs between a GPU and the `cpu` device. Device headers and
// kernels use only the names below, which cuda.h (compiled by a CUDA compiler) and cpu.h (compiled
// by a C++17 compiler, run by the SIMT executor) both define. Where OXSHMEM_EXPLORE is defined,
// explore.h defines it instead: there every access is a step of the schedule explorer.
//
// Memory, in namespace oxshmem::port
//   enum class order { relaxed, acquire, release, acq_rel }     enum class reach { block, device, system }
//   load<order, reach>(const T *) -> T, store<order, reach>(T *, T)
//       T: integer, enum, float or double of 1, 2, 4 or 8 bytes, naturally aligned. load takes relaxed or acquire, store takes
//       relaxed or release.
//   acquire<reach>(const T *)
//       Makes an acquire load of the relaxed load whose value the caller has just acted upon. Polling so is better than with
//       acquire loads: on a GPU each of those empties the multiprocessor's L1 cache, this does it once and loads nothing.
//   fetch_add, fetch_and, fetch_or, fetch_xor, fetch_max, exchange <order, reach>(T *, T) -> the old value
//   compare_exchange<order, reach>(T *, T expected, T desired) -> the old value; equal to `expected` if it was replaced
//       T of 4 or 8 bytes; float and double only for fetch_add, exchange and compare_exchange (which compares bits).
//   add_to, raise_to <order, reach>(T *, T)
//       fetch_add and fetch_max without an answer to wait for; unsigned integers, relaxed or release.
//   fence<order, reach>()
//       acq_rel orders this thread's earlier accesses against its later ones, but not a store before a later load. release
//       orders the earlier ones before its later stores.
//   mmio_store(uint64_t *reg, uint64_t value)
//       A doorbell: one 8-byte store that is neither split nor merged. Fence before it: it orders nothing by itself on a GPU.
//   vec16 { x, y, z, w }, load_vec(const void *), store_vec(void *, vec16)
//       One access of 16 aligned bytes, relaxed; not atomic as a whole.
//   read(const T *) -> T, write(T *, T), copy_bytes(void *dst, const void *src, uint64_t bytes)
//       Plain accesses, as `*p` and memcpy are, of memory that another thread, the HCA or the proxy can touch too. They order
//       nothing: fences and atomics before and after them do. Every such access goes through the port layer, because the
//       schedule explorer sees no other.
//   probe(const void *p, uint64_t bytes)
//       On `cpu`, faults here if the first or the last byte cannot be read; for ranges of less than a page. A GPU loses its
//       context with any fault, so there is nothing to do there.
//   touch<n, apart>(const void *p, uint32_t bytes)
//       For loads that follow: has n sectors of these (kSectorBytes each), each `apart` sectors after the one before, in the
//       cache next to the thread.
//   load_pair<order, reach>(const uint64_t *) -> pair64 { first, second }
//       Two loads of adjacent words, aligned to 16 bytes, as one access: of system reach, or relaxed and of device reach.
//   load_four<order, reach>(const uint32_t *) -> vec16
//       Likewise four loads of adjacent words, aligned to 16 bytes; relaxed and of device reach.
//   store_pair(uint64_t *p, uint64_t first, uint64_t second)
//       Two relaxed stores of system reach, to p[0] and p[1], in any order; p is aligned to 16 bytes.
//   forget(T &value)
//       Makes the compiler forget how it has computed a value of 32 bits, so that what follows from it is computed again rather
//       than kept in registers.
//   through_memory(void *p)
//       Makes the compiler store what it knows of the object at `p`, and load it again afterwards.
//   wake_host()
//       Call it after stores that a thread of the host waits for. On `cpu` it wakes that thread if it sleeps; a GPU cannot
//       wake a thread, and there the host polls.
//   watch_atomic(uint64_t offset, uint32_t bytes, int pe, bool by_card)
//       Call it before an atomic that changes this word of a PE's heap. On `cpu` the host compares which words the CPU and a
//       card change (docs/semantics.md, "Atomics and cards"); on a GPU this is nothing.
//
// Time
//   pause()      belongs into every spin loop: on `cpu` it lets the other threads run, and nothing else does
//   back_off(tries)
//       Call it between two tries where very many threads want one word. A GPU's thread sleeps, for longer the more often it
//       has tried, up to 8 us. Elsewhere this is nothing.
//   clock_ns()   monotonic nanoseconds; comparable within one device only
//
// Position
//   lane_id() in the warp, thread_rank() linear in the block, block_threads(), block_rank() linear in the grid, grid_blocks();
//   block_index() and thread_index() with fields x, y, z
//   grid_dependency_sync()
//       Not under the schedule explorer, which runs no grids one after another. Returns when the grids that the calling one
//       follows on its stream have ended, and what they have stored is visible. On a GPU that launches a grid early (sm_90;
//       CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization") they may be running until then, and
//       without this call until the calling grid has ended. Elsewhere they never are.
//   OXSHMEM_SYNCS_GRID_DEPENDENCY
//       Tells the runtime that each kernel of the module begins with that call, so that it launches them early, if the module
//       was compiled for a GPU that does. It stands in a module once.
//   kLooks: how often a short wait looks before it becomes one with a deadline
//   kCoalesced: adjacent lanes should touch adjacent addresses; if false, each lane should take a run of its own
//   kLongShare: from how many bytes on a member hands out its share of a reduction after it has combined all of it
//   kEagerLooks: how often all lanes look together for what others send, before those that wait for it wait each for itself
//   kGridsRelease: what a grid has stored is visible to the other PEs' devices before the next grid of its stream begins, or,
//   if that was launched early, before it returns from grid_dependency_sync
//   kRelocatable: functions that are not inlined keep registers in memory for their callers
//   kWholeWarp: the mask of all lanes of a warp
//
// Bits
//   count_ones, lowest_bit (of a value that is not 0), leading_zeros (likewise), byte_swap
//   permute_bytes(uint32_t a, uint32_t b, uint32_t selector) -> uint32_t
//       Byte i of the result is the one that hexadecimal digit i of `selector` names: 0 to 3 of a, 4 to 7 of b.
//
// Numbers
//   half_to_float(uint16_t) -> float, float_to_half(float) -> uint16_t     IEEE 754 binary16; rounds to nearest even
//   lesser(a, b), greater(a, b)
//       Of two floats or doubles. IEEE 754-2019, minimumNumber and maximumNumber: a NaN loses, and -0 is less than +0.
//   to_halves(float low, float high), to_bfloat16s(float low, float high) -> uint32_t     two at once, likewise; NaN becomes
//                  0x7fff
//
// Warps of 32 lanes. `mask` names lanes, must name the caller, and every lane in it that has not
// exited must make the same call with the same mask. On a GPU it is kWholeWarp or the caller alone.
//   active_mask()                    the lanes that are converged with the caller, itself included. A hint about grouping: two
//                                    lanes may be told different groups, but each is told the group that all of its members are
//                                    told. On `cpu` a group meets at one place of the compiled program. Lanes that call one
//                                    function from different places meet in it, and part when it returns, so a function that
//                                    returns the mask to its callers is OXSHMEM_INLINE.
//   converged(uint64_t key)          some of them, with an equal key, that work together; on a GPU the whole warp or the caller
//                                    alone
//   is_single()                      whether converged returns the caller alone, whatever the key
//   ballot(mask, predicate)          bit i: lane i's predicate
//   shfl(mask, value, source_lane)   value of lane `source_lane` modulo 32; the caller's own if that lane is not in the mask or
//   exited.
//                                    T: trivially copyable
//   match_any(mask, uint64_t value)  the lanes of the mask that have the caller's value
//   run_starts(mask, uint64_t value, step)
//                                    the lanes of the mask whose value is not that of the next lower lane of the mask plus
//                                    `step`, and the lowest lane: where runs of equally spaced values begin. `step` is the same
//                                    for all.
//   sync_block_any(predicate)        sync_block, and whether any thread's predicate is true
//   sync_warps(barrier, threads)     a barrier of `threads` threads of the block, whole warps except for the block's last one.
//                                    `barrier`, 1 to 15, tells barriers of a block apart. Not under the schedule explorer.
//   sync_warp(mask), sync_block()    barriers that also order memory among their participants. Exited threads do not count, nor
//   do lanes that the block's last warp does not have.
//
// Declarations
//   OXSHMEM_DEVICE                              before a device function that is defined in a header
//   OXSHMEM_INLINE                              likewise, for one that returns a mask of active_mask or converged: it is copied
//                                               into its callers however little the compiler optimises
//   OXSHMEM_NOINLINE                            likewise, for one that is called rarely
//   OXSHMEM_OUTLINE                             likewise, for one that is long: on a GPU it is not copied into its callers
//   OXSHMEM_LINKED_OUTLINE                      as OXSHMEM_OUTLINE in relocatable code, where a function has registers of its
//                                               own, and else as OXSHMEM_DEVICE
//   OXSHMEM_LAZY                                before one of these that is no template: only a program that calls it compiles
//                                               it. In relocatable code the compiler keeps them all.
//   OXSHMEM_UNROLL                              before a short loop of constant length
//   OXSHMEM_NO_UNROLL                           before a loop that should stay as it is
//   OXSHMEM_KERNEL(name, parameters...) { ... } a kernel, found by the host under `name`; parameters are trivially copyable
//   OXSHMEM_BOUNDED_KERNEL(threads, name, ...)  the same for blocks of at most `threads` threads; on a GPU each then has more
//                                               registers: 64 of 1024 threads, 128 of 512
//   OXSHMEM_SHARED(type, name, [N][M]...)       static shared memory, uninitialised; without extents: a scalar
//   OXSHMEM_DYNAMIC_SHARED(type, name)          type *name: the launch's dynamic shared memory, aligned to 16 bytes
//   state() -> const abi::State &               what the runtime tells every module
#pragma once

#include <oxshmem/abi.h>

#define OXSHMEM_LAZY template <class = void>

#ifdef __CUDACC__
#include <oxshmem/port/cuda.h>
#elif defined(OXSHMEM_EXPLORE)
#include <oxshmem/port/explore.h>
#else
#ifdef OXSHMEM_DEVICE_LIBRARY
#error "OXSHMEM_DEVICE_LIBRARY is for GPUs: the cpu device has no device library to link with"
#endif
#include <oxshmem/port/cpu.h>
#endif
