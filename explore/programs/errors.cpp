// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Programs whose HCA completes a work request with an error, and those that follow as flushed; and
// programs whose deadlines pass, be the queue full or not. Each call ends, and says that it has not
// done what it was to do. Afterwards another launch finds the queue pair either whole, or broken
// for the reason that was recorded first.
#define OXSHMEM_WAIT_POLLS 1 // the state of a wait is where it is
#include "bodies.h"

namespace explore {

using detail::order;
using detail::reach;

abi::Qp &queue() {
    return detail::qp_of(1, 0);
}

template <class T> T word_of(const T &word) {
    return port::load<order::relaxed, reach::device>(&word);
}

// Whether an error is recorded, or a thread is about to record it.
bool has_failed() {
    abi::Control &control = detail::control();
    return word_of(control.claimed) != 0 || word_of(control.abort) != 0 || word_of(queue().breakage.claimed) != 0;
}

abi::ErrorRecord copy_of(const abi::ErrorRecord &record) {
    abi::ErrorRecord copy;
    detail::copy_record(copy, record);
    return copy;
}

// Whether `later` reports the error that broke a queue.
bool reports(const abi::ErrorRecord &later, const abi::ErrorRecord &first) {
    if (first.code == static_cast<uint32_t>(abi::ErrorCode::completion)) {
        return later.code == first.code && later.qpn == first.qpn && later.wqe_index == first.wqe_index &&
               later.syndrome == first.syndrome;
    }
    return later.code == static_cast<uint32_t>(abi::ErrorCode::queue_broken) && later.qpn == first.qpn &&
           later.length == first.code;
}

// The last thread that comes here ends the launch: takes the error, as the host does, and calls
// once more.
void end_launch() {
    port::fence<order::acq_rel, reach::system>();
    const uint32_t threads = port::grid_blocks() * port::block_threads();
    if (port::fetch_add<order::acq_rel, reach::device>(heap<uint32_t>(0x7f8), 1u) + 1 != threads) {
        return;
    }
    abi::Control &control = detail::control();
    const bool failed = word_of(control.claimed) != 0, broken = word_of(queue().breakage.claimed) != 0;
    const abi::ErrorRecord first = copy_of(queue().breakage.first), said = copy_of(control.error);
    expect(!broken || word_of(queue().breakage.claimed) == abi::kErrorValid, "what broke the queue is not recorded");
    expect(!broken || failed, "a queue is broken, and no call of this launch has reported an error");
    expect(failed || word_of(control.abort) == 0, "a launch was aborted, and no error says why");
    if (failed) {
        const bool is_late = said.code == static_cast<uint32_t>(abi::ErrorCode::timeout);
        expect(word_of(control.claimed) == abi::kErrorValid, "the error is not whole");
        expect(is_late || (broken && reports(said, first)),
               "the launch reports another error than the one that broke the queue");
        port::store<order::relaxed, reach::system>(&control.claimed, 0u);
        port::store<order::relaxed, reach::system>(&control.abort, 0u);
        port::fence<order::acq_rel, reach::system>();
    }
    p(place(6, 0), value(6, 0), 1);
    oxshmem::quiet();
    if (broken) {
        expect(word_of(control.claimed) == abi::kErrorValid, "a later call does not report that its queue is broken");
        expect(reports(copy_of(control.error), first), "a later call reports another error than the one that broke its queue");
    } else if (!has_failed()) {
        note(kNoteQuiet);
    }
}

// One put.
void one_put() {
    p_quiet();
    end_launch();
}

// Three puts, each of a request of its own, wait for room in a queue of two blocks.
void puts() {
    p_p_p_quiet();
    end_launch();
}

// Data that the HCA fetches, by blocking puts.
void blocking_puts() {
    put_heap<5>();
    end_launch();
}

// What a fetch returns is right, or zero if an error says why.
void fetches() {
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t at = (block() * 2 + i + lane() * 4) % 8;
        const uint64_t got = g(heap<uint64_t>(0x700 + at * 8), 1);
        expect(got == 0x9e70 + at || (got == 0 && has_failed()), "g returned neither what is at the peer nor an error");
    }
    end_launch();
}

// Puts and fetches of one thread beside those of another.
void puts_and_fetches() {
    if (block() == 0) {
        p_p_p_quiet();
        end_launch();
    } else {
        fetches();
    }
}

constexpr oxshmem_explore_program kPrograms[] = {
    small(failing(posting("put_fails", one_put, 1, 1, 20000))),
    failing(posting("put_fails_2", one_put, 2, 1, 20000)),
    small(late(2, posting("put_late", one_put, 1, 1, 20000))),
    failing(posting("puts_fail", puts, 2, 1, 20000)),
    failing(posting("puts_fail_3", puts, 3, 2, 20000)),
    failing(in_host_memory(posting("puts_fail_host", puts, 2, 1, 20000))),
    failing(without_record(posting("puts_fail_without_record", puts, 2, 1, 20000))),
    failing(warps_of(2, posting("puts_fail_warps", puts, 2, 2, 40000))),
    failing(posting("blocking_puts_fail", blocking_puts, 2, 1, 20000)),
    failing(filled(posting("fetches_fail", fetches, 3, 1, 20000), 0)),
    failing(filled(posting("fetches_fail_2", fetches, 3, 2, 20000), 1)),
    failing(filled(posting("puts_and_fetches_fail", puts_and_fetches, 3, 1, 20000), 0)),
    late(3, posting("puts_late", puts, 2, 1, 20000)),
    late(3, without_record(posting("puts_late_without_record", puts, 2, 1, 20000))),
    late(2, posting("puts_late_3", puts, 3, 1, 20000)),
    late(3, warps_of(2, posting("puts_late_warps", puts, 2, 2, 40000))),
    late(3, filled(posting("fetches_late", fetches, 3, 1, 20000), 0)),
    late(3, failing(filled(posting("late_and_failing", puts_and_fetches, 3, 1, 20000), 0))),
};

} // namespace explore

#include "module.h"
