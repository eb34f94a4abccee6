// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What the host can call, on any device: transfers, strided ones, atomics, signals, collectives and
// teams, at once and on a stream.
#include "check.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

int me, n, next, previous;

void before_the_device() {
    CHECK(nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) == n && nvshmem_team_my_pe(NVSHMEM_TEAM_WORLD) == me);
    CHECK(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) == me && nvshmem_team_n_pes(NVSHMEMX_TEAM_NODE) == n);
    CHECK(nvshmem_team_my_pe(NVSHMEM_TEAM_INVALID) == -1);
    CHECK(NVSHMEMX_TEAM_SAME_MYPE_NODE == 3);
    int major = 0, minor = 0, patch = 0, provided = 0;
    char name[NVSHMEM_MAX_NAME_LEN];
    nvshmem_info_get_version(&major, &minor);
    CHECK(major == NVSHMEM_MAJOR_VERSION && minor == NVSHMEM_MINOR_VERSION);
    nvshmemx_vendor_get_version_info(&major, &minor, &patch);
    CHECK(major * 10000 + minor * 100 + patch == NVSHMEM_VENDOR_VERSION);
    nvshmem_info_get_name(name);
    CHECK(std::strstr(name, "OxSHMEM") != nullptr);
    nvshmem_query_thread(&provided);
    CHECK(provided == NVSHMEM_THREAD_SERIALIZED);
    CHECK(std::strcmp(nvshmemx_status_string(NVSHMEMX_ERROR_SYMMETRY), "NVSHMEMX_ERROR_SYMMETRY") == 0);
}

void transfers() {
    auto *cells = static_cast<long *>(nvshmem_calloc(16, sizeof(long)));
    CHECK(cells != nullptr && nvshmem_ptr(cells, me) == cells);
    CHECK(nvshmemx_mc_ptr(NVSHMEM_TEAM_WORLD, cells) == nullptr);
    CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_IS_INITIALIZED);
    nvshmem_long_p(cells, 40 + me, next);
    const long three[3] = {1, 2, 3};
    nvshmem_long_put(cells + 1, three, 3, next);
    nvshmem_put64_nbi(cells + 4, three, 3, next);
    nvshmem_long_iput(cells + 8, three, 2, 1, 3, next);
    nvshmem_barrier_all();
    CHECK(nvshmem_long_g(cells, me) == 40 + previous);
    long got[8] = {};
    nvshmem_getmem(got, cells, 8 * sizeof(long), me);
    CHECK(std::memcmp(got + 1, three, sizeof(three)) == 0 && std::memcmp(got + 4, three, sizeof(three)) == 0);
    std::memset(got, 0, sizeof(got));
    nvshmem_iget64(got, cells + 8, 2, 2, 3, me);
    CHECK(got[0] == 1 && got[1] == 0 && got[2] == 2 && got[4] == 3);
    nvshmem_quiet();
    nvshmem_fence();
    nvshmemx_flush();
    nvshmemx_flush_on_stream(nullptr);
    nvshmem_barrier_all();

    // On a stream, the values are those of the call.
    nvshmemx_long_p_on_stream(cells, 7, next, nullptr);
    nvshmemx_long_wait_until_on_stream(cells, NVSHMEM_CMP_EQ, 7, nullptr);
    CHECK(nvshmemx_long_g_on_stream(cells, me, nullptr) == 7);
    nvshmemx_long_put_on_stream(cells + 2, cells, 1, next, nullptr);
    nvshmemx_long_iput_on_stream(cells + 8, cells, 1, 1, 1, next, nullptr);
    nvshmemx_quiet_on_stream(nullptr);
    nvshmemx_barrier_all_on_stream(nullptr);
    nvshmemx_long_iget_on_stream(cells + 9, cells + 8, 1, 1, 1, next, nullptr);
    CHECK(nvshmemx_long_g_on_stream(cells + 2, me, nullptr) == 7 && nvshmem_long_g(cells + 9, me) == 7);
    nvshmem_free(cells);
}

// Memory of the program: as the local side, and as a part of the heap.
void buffers() {
    constexpr size_t kBytes = 1 << 16;
    auto *inbox = static_cast<char *>(nvshmem_malloc(kBytes));
    auto *own = static_cast<char *>(std::aligned_alloc(kBytes, kBytes));
    std::memset(own, me + 1, kBytes);
    CHECK(nvshmemx_buffer_register(own, kBytes) == NVSHMEMX_SUCCESS);
    CHECK(nvshmemx_buffer_register(own + 1, 1) == NVSHMEMX_ERROR_INVALID_VALUE);
    nvshmem_putmem(inbox, own, kBytes, next);
    nvshmem_barrier_all();
    CHECK(inbox[0] == previous + 1 && inbox[kBytes - 1] == previous + 1);
    CHECK(nvshmemx_buffer_unregister(own) == NVSHMEMX_SUCCESS);
    CHECK(nvshmemx_buffer_unregister(own) == NVSHMEMX_ERROR_INVALID_VALUE);
    nvshmemx_buffer_unregister_all();

    CHECK(nvshmemx_buffer_register_symmetric(own, kBytes, 1) == nullptr);
    auto *symmetric = static_cast<char *>(nvshmemx_buffer_register_symmetric(own, kBytes, 0));
    CHECK(symmetric != nullptr && symmetric != own && symmetric[7] == me + 1);
    nvshmem_barrier_all();
    nvshmem_char_p(symmetric + 7, static_cast<char>(64 + me), next);
    nvshmem_barrier_all();
    CHECK(own[7] == 64 + previous && nvshmem_char_g(symmetric + 7, me) == 64 + previous);
    CHECK(nvshmemx_buffer_unregister_symmetric(symmetric, kBytes) == NVSHMEMX_SUCCESS);
    CHECK(own[7] == 64 + previous);
    CHECK(nvshmemx_buffer_unregister_symmetric(symmetric, kBytes) == NVSHMEMX_ERROR_SYMMETRY);
    nvshmem_free(inbox);
}

void signals() {
    auto *signal = static_cast<uint64_t *>(nvshmem_calloc(4, sizeof(uint64_t)));
    auto *data = static_cast<float *>(nvshmem_calloc(2, sizeof(float)));
    nvshmemx_signal_op(signal, 5, NVSHMEM_SIGNAL_SET, next);
    nvshmemx_signal_wait_until_on_stream(signal, NVSHMEM_CMP_GE, 5, nullptr);
    nvshmemx_float_p_on_stream(data, 1.5f, me, nullptr);
    nvshmemx_float_put_signal_on_stream(data + 1, data, 1, signal, 2, NVSHMEM_SIGNAL_ADD, next, nullptr);
    nvshmemx_uint64_wait_until_all_on_stream(signal, 1, nullptr, NVSHMEM_CMP_GE, 7, nullptr);
    CHECK(nvshmemx_float_g_on_stream(data + 1, me, nullptr) == 1.5f);
    CHECK(nvshmem_signal_fetch(signal) == 7);
    nvshmem_barrier_all();
    nvshmemx_signal_counted_reset(signal);
    CHECK(nvshmem_signal_fetch(signal) == 0);
    // Each with its own value, but the second.
    auto *status = static_cast<int *>(nvshmem_calloc(3, sizeof(int)));
    auto *wanted = static_cast<uint64_t *>(nvshmem_calloc(3, sizeof(uint64_t)));
    nvshmem_int_p(status + 1, 1, me);
    nvshmem_uint64_p(wanted + 1, 99, me);
    nvshmemx_uint64_wait_until_all_vector_on_stream(signal + 1, 3, status, NVSHMEM_CMP_EQ, wanted, nullptr);
    nvshmemx_sync_all_on_stream(nullptr);
    nvshmem_barrier_all();
    for (void *memory :
         {static_cast<void *>(wanted), static_cast<void *>(status), static_cast<void *>(data), static_cast<void *>(signal)}) {
        nvshmem_free(memory);
    }
}

void atomics() {
    auto *word = static_cast<uint32_t *>(nvshmem_calloc(2, sizeof(uint32_t)));
    CHECK(nvshmem_uint32_atomic_fetch_add(word, 6, next) == 0);
    CHECK(nvshmem_uint32_atomic_compare_swap(word, 6, 12, next) == 6);
    CHECK(nvshmem_uint32_atomic_fetch_and(word, 10, next) == 12);
    nvshmem_uint32_atomic_or(word, 1, next);
    nvshmem_uint32_atomic_xor(word, 3, next);
    nvshmem_uint32_atomic_inc(word, next);
    CHECK(nvshmem_uint32_atomic_swap(word, 1, next) == 11);
    nvshmem_float_atomic_set(reinterpret_cast<float *>(word + 1), 2.5f, next);
    CHECK(nvshmem_float_atomic_fetch(reinterpret_cast<float *>(word + 1), next) == 2.5f);
    CHECK(nvshmemx_float_atomic_fetch_add(reinterpret_cast<float *>(word + 1), 0.25f, next) == 2.5f);
    nvshmemx_float_atomic_add(reinterpret_cast<float *>(word + 1), -1.0f, next);
    CHECK(nvshmem_float_atomic_fetch(reinterpret_cast<float *>(word + 1), next) == 1.75f);
    nvshmem_barrier_all();
    nvshmem_free(word);
}

// Numbers of 16 bits share words, and the last one ends the memory.
void halves() {
    using half = OXSHMEM_NV_HALF;
    const half one = {0x3c00}, minus_two = {0xc000}, tiny = {0x0001}, greatest = {0x7bff};
    auto *cells = static_cast<half *>(nvshmem_calloc(3, sizeof(half)));
    nvshmem_half_atomic_set(cells, one, next);
    nvshmem_half_atomic_set(cells + 1, minus_two, next);
    CHECK(nvshmem_half_atomic_swap(cells + 2, greatest, next).bits == 0);
    CHECK(nvshmemx_half_atomic_fetch_add(cells + 1, one, next).bits == 0xc000);
    nvshmemx_half_atomic_add(cells, minus_two, next);
    CHECK(nvshmem_half_atomic_fetch(cells, next).bits == 0xbc00 && nvshmem_half_atomic_fetch(cells + 1, next).bits == 0xbc00);
    nvshmemx_half_atomic_add(cells + 2, tiny, next); // rounds to what it was
    CHECK(nvshmem_half_atomic_fetch(cells + 2, next).bits == 0x7bff);
    nvshmemx_half_atomic_add(cells + 2, greatest, next);
    CHECK(nvshmem_half_atomic_fetch(cells + 2, next).bits == 0x7c00); // infinity
    nvshmem_barrier_all();
    nvshmem_free(cells);
}

void queue_pairs() {
    nvshmemx_qp_handle_t *handles = nullptr, *more = nullptr;
    CHECK(nvshmemx_qp_create(3, &handles) == 0 && nvshmemx_qp_create(1, &more) == 0);
    CHECK(handles[0] > NVSHMEMX_QP_DEFAULT && handles[1] == handles[0] + 1 && handles[2] == handles[0] + 2);
    CHECK(more[0] == handles[2] + 1);
    std::free(more);
    std::free(handles);
    handles = &me;
    CHECK(nvshmemx_qp_create(0, &handles) != 0 && handles == nullptr);
    CHECK(nvshmemx_qp_create(-1, &handles) != 0 && nvshmemx_qp_create(1, nullptr) != 0);
}

void collectives() {
    auto *source = static_cast<int *>(nvshmem_calloc(n, sizeof(int)));
    auto *result = static_cast<int *>(nvshmem_calloc(n, sizeof(int)));
    for (int pe = 0; pe < n; ++pe) {
        nvshmem_int_p(source + pe, 10 * me + pe, me);
    }
    CHECK(nvshmem_int_alltoall(NVSHMEM_TEAM_WORLD, result, source, 1) == 0);
    CHECK(nvshmem_int_g(result + previous, me) == 10 * previous + me);
    CHECK(nvshmem_int_fcollect(NVSHMEM_TEAM_WORLD, result, source, 1) == 0);
    CHECK(nvshmem_int_g(result + next, me) == 10 * next);
    CHECK(nvshmem_int_sum_reduce(NVSHMEM_TEAM_WORLD, result, source, 1) == 0);
    CHECK(nvshmem_int_g(result, me) == 5 * n * (n - 1));
    CHECK(nvshmemx_int_max_reduce_on_stream(NVSHMEM_TEAM_WORLD, result, source, 1, nullptr) == 0);
    CHECK(nvshmemx_int_g_on_stream(result, me, nullptr) == 10 * (n - 1));
    CHECK(nvshmem_int_broadcast(NVSHMEM_TEAM_WORLD, result, source, 1, n - 1) == 0);
    CHECK(nvshmem_int_g(result, me) == 10 * (n - 1));
    CHECK(nvshmem_team_sync(NVSHMEM_TEAM_WORLD) == 0 && nvshmem_barrier(NVSHMEMX_TEAM_NODE) == 0);
    // All PEs are on one node, so no other PE has the number of this one in its node.
    CHECK(nvshmem_team_n_pes(NVSHMEMX_TEAM_SAME_MYPE_NODE) == 1 && nvshmem_barrier(NVSHMEMX_TEAM_SAME_MYPE_NODE) == 0);

    nvshmem_team_t alone = NVSHMEM_TEAM_INVALID, column = NVSHMEM_TEAM_INVALID;
    CHECK(nvshmem_team_split_2d(NVSHMEM_TEAM_WORLD, 1, nullptr, 0, &alone, nullptr, 0, &column) == 0);
    CHECK(nvshmem_team_n_pes(alone) == 1 && nvshmem_team_n_pes(column) == n);
    CHECK(nvshmem_team_translate_pe(alone, 0, NVSHMEM_TEAM_WORLD) == me);
    nvshmem_team_config_t config = NVSHMEM_TEAM_CONFIG_INITIALIZER;
    nvshmem_team_get_config(column, &config);
    CHECK(config.num_contexts == 0);
    nvshmem_team_destroy(column);
    nvshmem_team_destroy(alone);

    // Each PE passes the numbers of its own part: every other PE, from 0 or from 1 on.
    nvshmem_team_t every_other = NVSHMEM_TEAM_INVALID;
    const int parity = me % 2, members = (n - parity + 1) / 2;
    CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, parity, 2, members, nullptr, 0, &every_other) == 0);
    CHECK(nvshmem_team_n_pes(every_other) == members && nvshmem_team_my_pe(every_other) == me / 2);
    CHECK(nvshmem_barrier(every_other) == 0);
    nvshmem_team_destroy(every_other);
    // A PE that is not in the part that it names is in none.
    if (n > 1) {
        CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, (me + 1) % n, 1, 1, nullptr, 0, &every_other) == 0);
        CHECK(every_other == NVSHMEM_TEAM_INVALID);
    }
    CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, -1, 1, 1, nullptr, 0, &every_other) != 0);

    // A team of this PE alone, by an id.
    config.uniqueid = 0;
    CHECK(nvshmemx_team_get_uniqueid(&config.uniqueid) == 0 && config.uniqueid != 0);
    CHECK(nvshmemx_team_init(&alone, &config, NVSHMEM_TEAM_CONFIG_MASK_UNIQUEID, 1, 0) == 0 && nvshmem_team_n_pes(alone) == 1);
    nvshmem_team_destroy(alone);
    CHECK(nvshmemx_buffer_register_symmetric(source, sizeof(int), 0) == nullptr);
    CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, n + 1, nullptr, 0, &alone) != 0);
    nvshmem_free(result);
    nvshmem_free(source);
}

// Another part of the program joins and leaves as if it were alone; this one goes on.
void second_part() {
    nvshmem_init();
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    CHECK(nvshmemx_hostlib_init_attr(0, &attributes) == NVSHMEMX_SUCCESS);
    CHECK(nvshmem_my_pe() == me && nvshmem_n_pes() == n);
    auto *cell = static_cast<int *>(nvshmem_calloc(1, sizeof(int)));
    nvshmemx_hostlib_finalize();
    nvshmem_finalize();
    CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_IS_INITIALIZED);
    nvshmem_int_p(cell, 80 + me, next);
    nvshmem_barrier_all();
    CHECK(nvshmem_int_g(cell, me) == 80 + previous);
    nvshmem_free(cell);
}

int complaints = 0;

// Places for results that are not there.
void nulls() {
    complaints = 0;
    oxshmem_nv_error_handler([](const char *, const char *reason) { complaints += std::strstr(reason, "is null") != nullptr; });
    nvshmem_query_thread(nullptr);
    CHECK(complaints == 1);
    nvshmem_team_get_config(NVSHMEM_TEAM_WORLD, nullptr);
    CHECK(complaints == 2);
    CHECK(nvshmemx_team_get_uniqueid(nullptr) == NVSHMEMX_ERROR_INVALID_VALUE);
    oxshmem_nv_error_handler(nullptr);
}

// Calls without a status tell the handler, which may return.
void failures() {
    complaints = 0;
    oxshmem_nv_error_handler([](const char *call, const char *reason) {
        complaints += std::strstr(call, "nvshmem_int_p") != nullptr && std::strstr(reason, "PE 4711 does not exist") != nullptr;
    });
    auto *cell = static_cast<int *>(nvshmem_malloc(sizeof(int)));
    nvshmem_int_p(cell, 1, 4711);
    CHECK(complaints == 1);
    oxshmem_nv_error_handler(nullptr);
    nvshmem_barrier_all();
    nvshmem_free(cell);
}

} // namespace

int main() {
    for (int round = 0; round < 2; ++round) {
        CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED);
        nvshmem_init();
        // Calls in which all PEs meet wait as long as these live.
        const char *const meeting = std::getenv("OXSHMEM_MEETING_TIMEOUT");
        CHECK(meeting != nullptr && std::strcmp(meeting, "24h") == 0);
        me = nvshmem_my_pe(), n = nvshmem_n_pes(), next = (me + 1) % n, previous = (me + n - 1) % n;
        before_the_device();
        transfers();
        buffers();
        signals();
        atomics();
        halves();
        queue_pairs();
        collectives();
        failures();
        nulls();
        second_part();
        nvshmem_finalize();
    }
}
