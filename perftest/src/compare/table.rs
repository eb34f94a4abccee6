//! Every row of the comparison.

use super::rows::{Contexts, Goal, Path, Row, Unit};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Room for a word of each PE.
const MEETING_BYTES: u64 = KIB;

/// A row's name, its title, and the kernel that it measures.
struct Names {
    name: &'static str,
    title: &'static str,
    kernel: &'static str,
}

const fn names(name: &'static str, title: &'static str, kernel: &'static str) -> Names {
    Names { name, title, kernel }
}

const fn row(Names { name, title, kernel }: Names, (ctas, threads): (u32, u32)) -> Row {
    Row {
        name,
        title,
        kernel,
        ctas,
        threads,
        bytes: 8,
        operations: 1,
        stride: 1,
        step: 128,
        steps: 256,
        warmup: 20,
        iters: 1000,
        unit: Unit::Microseconds,
        path: Path::P2p,
        contexts: None,
        limit: None,
        goal: None,
        goal_pes: None,
        reference: None,
    }
}

/// Returns a row of bandwidth: 32 MiB an iteration. CTAs run apart, so all iterations put to the
/// same place.
const fn bandwidth(names: Names, ctas: u32, iters: u64, limit: Option<&'static str>, goal: Option<Goal>) -> Row {
    Row {
        bytes: 32 * MIB,
        step: 0,
        steps: 1,
        warmup: 4,
        iters,
        unit: Unit::GigabytesPerSecond,
        limit,
        goal,
        ..row(names, (ctas, 1024))
    }
}

/// Returns a row of latency: one group of threads.
const fn latency(names: Names, threads: u32, bytes: u64, iters: u64, goal: Option<Goal>) -> Row {
    Row { bytes, iters, goal, ..row(names, (1, threads)) }
}

/// Has iterations get from different places, so what one has left does not pass for what the next
/// should bring.
const fn shifted(row: Row) -> Row {
    Row { step: 64, steps: 16, ..row }
}

/// Sets the distance that makes each get cross the link: over 64 MiB, which no cache on the way
/// holds.
const fn afar(row: Row) -> Row {
    Row { step: row.bytes, steps: 64 * MIB / row.bytes, ..row }
}

const fn with_limit(row: Row, limit: &'static str) -> Row {
    Row { limit: Some(limit), ..row }
}

/// Returns a row in which all PEs meet; goals are for four of them.
const fn meeting(names: Names, threads: u32, limit: Option<&'static str>, goal: Option<Goal>) -> Row {
    // Steps have room for a word of each of up to 64 PEs.
    Row { bytes: MEETING_BYTES, step: 512, limit, goal, goal_pes: Some(4), ..row(names, (1, threads)) }
}

/// Returns a row in which all PEs call a collective of `bytes` bytes; goals are for four of them.
/// There is room for the data of eight.
const fn collective(names: Names, threads: u32, bytes: u64, iters: u64, goal: Option<Goal>) -> Row {
    Row { step: 8 * bytes, steps: 1, goal_pes: Some(4), ..latency(names, threads, bytes, iters, goal) }
}

/// Returns a row of a call of the host that goes to a stream, again and again: `bytes` as in
/// [`collective`]. There is room for the data of eight PEs.
const fn queued(name: &'static str, title: &'static str, kernel: &'static str, bytes: u64) -> Row {
    let iters = if bytes <= 256 * KIB {
        500
    } else if bytes <= 16 * MIB {
        60
    } else {
        12
    };
    Row {
        bytes,
        step: 8 * bytes,
        steps: 1,
        warmup: iters / 10 + 2,
        iters,
        goal: Some(Goal::OfTheirTime(1.0)),
        ..row(names(name, title, kernel), (1, 1))
    }
}

/// Returns a row of an operation on the other PE that the host queues.
const fn queued_to(name: &'static str, title: &'static str, kernel: &'static str, bytes: u64) -> Row {
    Row { step: 0, ..queued(name, title, kernel, bytes) }
}

/// Returns a row in which all PEs send `bytes` to each, by puts of all CTAs. There is room for the
/// data of eight.
const fn exchange(name: &'static str, title: &'static str, shape: (u32, u32), bytes: u64, iters: u64) -> Row {
    let goal = Some(Goal::OfTheirTime(1.0));
    Row { bytes, step: 8 * bytes, steps: 1, iters, goal, ..row(names(name, title, "exchange_block"), shape) }
}

/// Returns a row of a Jacobi solver on a mesh of `side` columns and rows: microseconds of an
/// iteration. A field of two PEs and more is `bytes` long at most, and `step` is the side.
const fn jacobi(names: Names, side: u64, iters: u64, goal: Option<Goal>) -> Row {
    Row {
        bytes: (side / 2 + 2) * side * 4,
        step: side,
        steps: 1,
        iters,
        goal,
        goal_pes: Some(4),
        // One CTA for each multiprocessor of an H200.
        ..row(names, (132, 512))
    }
}

/// Returns the bytes that a PE needs for what comes to it: `MoeRoom` of `compare/moe.h`, with four
/// choices of an expert for each token.
pub const fn moe_room(pes: u64, tokens: u64, bytes: u64) -> u64 {
    const CHOICES: u64 = 4;
    let own = tokens * (1 + CHOICES) * bytes;
    own + pes * (tokens * CHOICES * (bytes + 8) + 3 * 8)
}

/// Returns a row in which 64 tokens of each PE go to four experts of eight on each PE, and come
/// back: as `alltoall --mode moe` does it, dispatch and combine together. There is room for eight
/// PEs.
const fn moe(name: &'static str, title: &'static str, bytes: u64) -> Row {
    const TOKENS: u64 = 64;
    Row {
        bytes,
        stride: TOKENS,
        step: moe_room(8, TOKENS, bytes),
        steps: 1,
        warmup: 10,
        iters: 200,
        goal: Some(Goal::OfTheirTime(1.0)),
        ..row(names(name, title, "moe"), (64, 512))
    }
}

/// Returns a row of posting to the null card: `each` bytes by every calling thread. Their reference
/// figure, and the goal.
const fn posting(names: Names, shape: (u32, u32), qps: u32, each: u64, (reference, goal): (f64, Goal)) -> Row {
    let callers = shape.0 as u64 * shape.1 as u64;
    Row {
        bytes: callers * each,
        step: 0,
        steps: 1,
        operations: callers,
        warmup: 100,
        iters: 2000,
        unit: Unit::MegaOperationsPerSecond,
        path: Path::NullCard { qps, depth: 8192 },
        goal: Some(goal),
        reference: Some(reference),
        ..row(names, shape)
    }
}

/// Gives the row a context for each thread.
const fn by_thread(row: Row) -> Row {
    Row { contexts: Some(Contexts { sharing: "thread", count: row.ctas * row.threads, depth: 8192 }), ..row }
}

/// Gives the row a context for each warp.
const fn by_warp(row: Row) -> Row {
    Row { contexts: Some(Contexts { sharing: "warp", count: row.ctas * row.threads / 32, depth: 1024 }), ..row }
}

/// Gives the row a context for each CTA.
const fn by_block(row: Row) -> Row {
    Row { contexts: Some(Contexts { sharing: "block", count: row.ctas, depth: 1024 }), ..row }
}

/// Puts of 1 KiB with a signal, each by a whole CTA, as an all-to-all posts them.
const fn put_signals(names: Names, goal: Goal) -> Row {
    const CTAS: u32 = 32;
    let row = posting(names, (CTAS, BLOCK), CTAS, 8, (0.0, goal));
    Row { bytes: CTAS as u64 * KIB, operations: CTAS as u64, reference: None, ..row }
}

/// Has lanes put two words apart, so they do not combine.
const fn apart(row: Row) -> Row {
    Row { stride: 2, ..row }
}

/// Gives the row queues of 1024 blocks, which is one group of each warp of a full CTA.
const fn shallow(row: Row) -> Row {
    match row.path {
        Path::NullCard { qps, .. } => Row { path: Path::NullCard { qps, depth: 1024 }, ..row },
        Path::P2p => row,
    }
}

const AT_LIMIT: Option<Goal> = Some(Goal::OfLimit(0.98));
const FIVE_TIMES: Goal = Goal::TimesTheirs(5.0);
const FOUR_TIMES: Goal = Goal::TimesTheirs(4.0);
const THREE_TIMES: Goal = Goal::TimesTheirs(3.0);

const BLOCK: u32 = 256;

/// Every row. Limits stand before what they limit.
pub const ROWS: &[Row] = &[
    // Once in each run, by a program that has made its GPU's context before.
    Row {
        step: 0,
        steps: 1,
        warmup: 0,
        iters: 1,
        goal: Some(Goal::OfTheirTime(1.0)),
        ..row(names("init", "init, with the context of the GPU made before", "init"), (1, 1))
    },
    bandwidth(names("link_store_1", "16-byte stores over the link, 1 CTA x 1024", "link_store"), 1, 20, None, None),
    bandwidth(names("link_store_4", "16-byte stores over the link, 4 CTAs x 1024", "link_store"), 4, 60, None, None),
    bandwidth(
        names("link_store_32", "16-byte stores over the link, 32 CTAs x 1024", "link_store"),
        32,
        120,
        None,
        None,
    ),
    bandwidth(
        names("put_bw_block_1", "put_nbi block, 32 MiB, 1 CTA x 1024", "put_bw_block"),
        1,
        20,
        Some("link_store_1"),
        AT_LIMIT,
    ),
    bandwidth(
        names("put_bw_block_4", "put_nbi block, 32 MiB, 4 CTAs x 1024", "put_bw_block"),
        4,
        60,
        Some("link_store_4"),
        AT_LIMIT,
    ),
    bandwidth(
        names("put_bw_block_32", "put_nbi block, 32 MiB, 32 CTAs x 1024", "put_bw_block"),
        32,
        120,
        Some("link_store_32"),
        AT_LIMIT,
    ),
    shifted(bandwidth(
        names("link_load_4", "16-byte loads over the link, 4 CTAs x 1024", "link_load"),
        4,
        60,
        None,
        None,
    )),
    shifted(bandwidth(
        names("get_bw_block_4", "get block, 32 MiB, 4 CTAs x 1024", "get_bw_block"),
        4,
        60,
        Some("link_load_4"),
        Some(Goal::TimesTheirs(2.5)),
    )),
    bandwidth(names("link_words_32", "8-byte stores over the link, 32 CTAs x 1024", "link_words"), 32, 120, None, None),
    bandwidth(
        names("p_bw_32", "p, 8 bytes, bare loop, 32 CTAs x 1024", "p_bw"),
        32,
        120,
        Some("link_words_32"),
        AT_LIMIT,
    ),
    latency(names("word_fence", "load here, store there, system fence", "word_fence"), 1, 8, 1000, None),
    with_limit(
        latency(
            names("put_quiet_thread_8", "put_nbi + quiet, thread, 8 B", "put_quiet_thread"),
            1,
            8,
            1000,
            Some(Goal::OfTheirTime(0.72)),
        ),
        "word_fence",
    ),
    latency(
        names("put_quiet_thread_64k", "put_nbi + quiet, thread, 64 KiB", "put_quiet_thread"),
        1,
        64 * KIB,
        100,
        Some(Goal::OfTheirTime(0.33)),
    ),
    latency(
        names("put_quiet_warp_64k", "put_nbi + quiet, warp, 64 KiB", "put_quiet_warp"),
        32,
        64 * KIB,
        400,
        Some(Goal::OfTheirTime(0.5)),
    ),
    afar(latency(
        names("get_thread_64k", "get, thread, 64 KiB", "get_thread"),
        1,
        64 * KIB,
        40,
        Some(Goal::OfTheirTime(0.33)),
    )),
    afar(latency(
        names("get_warp_64k", "get, warp, 64 KiB", "get_warp"),
        32,
        64 * KIB,
        200,
        Some(Goal::OfTheirTime(0.33)),
    )),
    latency(names("flag_ping_pong", "ping-pong of plain stores, round trip", "flag_ping_pong"), 1, 8, 1000, None),
    with_limit(
        latency(
            names("signal_ping_pong", "signal ping-pong, round trip", "signal_ping_pong"),
            1,
            8,
            1000,
            Some(Goal::AtMost(1.3)),
        ),
        "flag_ping_pong",
    ),
    latency(
        names(
            "put_signal_ping_pong_1k",
            "put_signal ping-pong, thread, 1 KiB, round trip",
            "put_signal_ping_pong_thread",
        ),
        1,
        KIB,
        500,
        Some(Goal::OfTheirTime(0.4)),
    ),
    meeting(names("flag_barrier", "system fence, and a flag to and from each PE", "flag_barrier"), 32, None, None),
    meeting(
        names("barrier_all_thread", "barrier_all, thread", "barrier_all_thread"),
        1,
        Some("flag_barrier"),
        Some(Goal::AtMost(1.4)),
    ),
    meeting(
        names("barrier_all_block", "barrier_all, block of 256", "barrier_all_block"),
        BLOCK,
        Some("flag_barrier"),
        Some(Goal::AtMost(1.4)),
    ),
    meeting(names("flag_sync", "a flag to and from each PE", "flag_sync"), 32, None, None),
    meeting(
        names("sync_all_thread", "sync_all, thread", "sync_all_thread"),
        1,
        Some("flag_sync"),
        Some(Goal::AtMost(0.9)),
    ),
    meeting(
        names("sync_all_block", "sync_all, block of 256", "sync_all_block"),
        BLOCK,
        Some("flag_sync"),
        Some(Goal::AtMost(0.9)),
    ),
    collective(
        names("alltoall_thread_8", "alltoall, thread, 8 B to each PE", "alltoall_thread"),
        1,
        8,
        1000,
        Some(Goal::AtMost(1.3)),
    ),
    collective(
        names("alltoall_block_8", "alltoall, block of 256, 8 B to each PE", "alltoall_block"),
        BLOCK,
        8,
        1000,
        Some(Goal::AtMost(1.3)),
    ),
    collective(
        names("alltoall_block_1m", "alltoall, block of 1024, 1 MiB to each PE", "alltoall_block"),
        1024,
        MIB,
        60,
        Some(Goal::OfTheirTime(0.5)),
    ),
    collective(
        names("fcollect_block_256k", "fcollect, block of 1024, 256 KiB of each PE", "fcollect_block"),
        1024,
        256 * KIB,
        60,
        Some(Goal::OfTheirTime(0.5)),
    ),
    collective(
        names("broadcast_block_1m", "broadcast, block of 1024, 1 MiB", "broadcast_block"),
        1024,
        MIB,
        60,
        Some(Goal::OfTheirTime(0.4)),
    ),
    collective(
        names("sum_block_8", "sum reduce, block of 256, one 64-bit word", "sum_block"),
        BLOCK,
        8,
        1000,
        Some(Goal::OfTheirTime(1.0)),
    ),
    collective(
        names("sum_block_1m", "sum reduce, block of 1024, 1 MiB of 64-bit words", "sum_block"),
        1024,
        MIB,
        60,
        Some(Goal::OfTheirTime(1.0)),
    ),
    exchange("exchange_8", "all-to-all by put_signal, block of 32, 8 B to each PE", (1, 32), 8, 1000),
    exchange("exchange_64k", "all-to-all by put_signal, 4 CTAs x 512, 64 KiB to each PE", (4, 512), 64 * KIB, 300),
    exchange("exchange_4m", "all-to-all by put_signal, 32 CTAs x 512, 4 MiB to each PE", (32, 512), 4 * MIB, 60),
    moe("moe_2k", "mixture of experts, 64 tokens of 2 KiB, dispatch and combine", 2 * KIB),
    moe("moe_16k", "mixture of experts, 64 tokens of 16 KiB, dispatch and combine", 16 * KIB),
    jacobi(
        names("jacobi_p_4096", "Jacobi 4096 x 4096, rows by p, an iteration", "jacobi_p"),
        4096,
        1000,
        Some(Goal::OfTheirTime(0.8)),
    ),
    jacobi(
        names("jacobi_put_4096", "Jacobi 4096 x 4096, rows by put_signal, an iteration", "jacobi_put"),
        4096,
        1000,
        Some(Goal::OfTheirTime(0.8)),
    ),
    jacobi(
        names("jacobi_p_16384", "Jacobi 16384 x 16384, rows by p, an iteration", "jacobi_p"),
        16384,
        300,
        Some(Goal::OfTheirTime(0.97)),
    ),
    jacobi(
        names("jacobi_put_16384", "Jacobi 16384 x 16384, rows by put_signal, an iteration", "jacobi_put"),
        16384,
        300,
        Some(Goal::OfTheirTime(0.97)),
    ),
    queued_to("stream_put_8", "put on a stream, 8 B", "stream_put", 8),
    queued_to("stream_put_32k", "put on a stream, 32 KiB", "stream_put", 32 * KIB),
    queued_to("stream_put_256m", "put on a stream, 256 MiB", "stream_put", 256 * MIB),
    queued_to("stream_put_quiet_8", "put + quiet on a stream, 8 B", "stream_put_quiet", 8),
    queued_to("stream_put_signal_8", "put_signal on a stream, 8 B", "stream_put_signal", 8),
    queued_to("stream_put_signal_32k", "put_signal on a stream, 32 KiB", "stream_put_signal", 32 * KIB),
    shifted(queued_to("stream_get_8", "get on a stream, 8 B", "stream_get", 8)),
    shifted(queued_to("stream_get_32k", "get on a stream, 32 KiB", "stream_get", 32 * KIB)),
    queued_to("stream_p", "p on a stream", "stream_p", 8),
    queued_to("stream_signal", "signal SET on a stream", "stream_signal", 8),
    queued("stream_barrier_all", "barrier_all on a stream", "stream_barrier_all", 8),
    queued("stream_sync_all", "sync_all on a stream", "stream_sync_all", 8),
    queued("stream_reduce_8", "sum reduce on a stream, 8 B", "stream_reduce", 8),
    queued("stream_reduce_1k", "sum reduce on a stream, 1 KiB", "stream_reduce", KIB),
    queued("stream_reduce_32k", "sum reduce on a stream, 32 KiB", "stream_reduce", 32 * KIB),
    queued("stream_reduce_1m", "sum reduce on a stream, 1 MiB", "stream_reduce", MIB),
    queued("stream_reduce_16m", "sum reduce on a stream, 16 MiB", "stream_reduce", 16 * MIB),
    queued("stream_reduce_256m", "sum reduce on a stream, 256 MiB", "stream_reduce", 256 * MIB),
    queued("stream_reducescatter_8", "sum reducescatter on a stream, 8 B for each PE", "stream_reducescatter", 8),
    queued("stream_reducescatter_512", "sum reducescatter on a stream, 512 B for each PE", "stream_reducescatter", 512),
    queued(
        "stream_reducescatter_16k",
        "sum reducescatter on a stream, 16 KiB for each PE",
        "stream_reducescatter",
        16 * KIB,
    ),
    queued(
        "stream_reducescatter_512k",
        "sum reducescatter on a stream, 512 KiB for each PE",
        "stream_reducescatter",
        512 * KIB,
    ),
    queued(
        "stream_reducescatter_8m",
        "sum reducescatter on a stream, 8 MiB for each PE",
        "stream_reducescatter",
        8 * MIB,
    ),
    queued(
        "stream_reducescatter_128m",
        "sum reducescatter on a stream, 128 MiB for each PE",
        "stream_reducescatter",
        128 * MIB,
    ),
    queued("stream_fcollect_8", "fcollect on a stream, 8 B of each PE", "stream_fcollect", 8),
    queued("stream_fcollect_512", "fcollect on a stream, 512 B of each PE", "stream_fcollect", 512),
    queued("stream_fcollect_16k", "fcollect on a stream, 16 KiB of each PE", "stream_fcollect", 16 * KIB),
    queued("stream_fcollect_512k", "fcollect on a stream, 512 KiB of each PE", "stream_fcollect", 512 * KIB),
    queued("stream_fcollect_8m", "fcollect on a stream, 8 MiB of each PE", "stream_fcollect", 8 * MIB),
    queued("stream_fcollect_128m", "fcollect on a stream, 128 MiB of each PE", "stream_fcollect", 128 * MIB),
    queued("stream_alltoall_8", "alltoall on a stream, 8 B to each PE", "stream_alltoall", 8),
    queued("stream_alltoall_512", "alltoall on a stream, 512 B to each PE", "stream_alltoall", 512),
    queued("stream_alltoall_16k", "alltoall on a stream, 16 KiB to each PE", "stream_alltoall", 16 * KIB),
    queued("stream_alltoall_512k", "alltoall on a stream, 512 KiB to each PE", "stream_alltoall", 512 * KIB),
    queued("stream_alltoall_8m", "alltoall on a stream, 8 MiB to each PE", "stream_alltoall", 8 * MIB),
    queued("stream_alltoall_128m", "alltoall on a stream, 128 MiB to each PE", "stream_alltoall", 128 * MIB),
    queued("stream_broadcast_8", "broadcast on a stream, 8 B", "stream_broadcast", 8),
    queued("stream_broadcast_1k", "broadcast on a stream, 1 KiB", "stream_broadcast", KIB),
    queued("stream_broadcast_32k", "broadcast on a stream, 32 KiB", "stream_broadcast", 32 * KIB),
    queued("stream_broadcast_1m", "broadcast on a stream, 1 MiB", "stream_broadcast", MIB),
    queued("stream_broadcast_16m", "broadcast on a stream, 16 MiB", "stream_broadcast", 16 * MIB),
    queued("stream_broadcast_256m", "broadcast on a stream, 256 MiB", "stream_broadcast", 256 * MIB),
    apart(posting(names("post_p_1", "p, not combined, 1 CTA x 1024", "p_bw"), (1, 1024), 1, 8, (34.0, FIVE_TIMES))),
    apart(posting(names("post_p_8", "p, not combined, 8 CTAs x 1024", "p_bw"), (8, 1024), 8, 8, (257.0, FIVE_TIMES))),
    apart(posting(
        names("post_p_32", "p, not combined, 32 CTAs x 1024", "p_bw"),
        (32, 1024),
        32,
        8,
        (945.0, FIVE_TIMES),
    )),
    shallow(apart(posting(
        names("post_p_shallow_1", "p, not combined, 1 CTA x 1024, depth 1024", "p_bw"),
        (1, 1024),
        1,
        8,
        (34.0, FIVE_TIMES),
    ))),
    shallow(apart(posting(
        names("post_p_shallow_8", "p, not combined, 8 CTAs x 1024, depth 1024", "p_bw"),
        (8, 1024),
        8,
        8,
        (238.0, FIVE_TIMES),
    ))),
    shallow(apart(posting(
        names("post_p_shallow_32", "p, not combined, 32 CTAs x 1024, depth 1024", "p_bw"),
        (32, 1024),
        32,
        8,
        (930.0, FIVE_TIMES),
    ))),
    posting(names("post_p_combined_1", "p, combined, 1 CTA x 1024", "p_bw"), (1, 1024), 1, 8, (130.0, THREE_TIMES)),
    posting(names("post_p_combined_8", "p, combined, 8 CTAs x 1024", "p_bw"), (8, 1024), 8, 8, (910.0, THREE_TIMES)),
    posting(
        names("post_p_combined_32", "p, combined, 32 CTAs x 1024", "p_bw"),
        (32, 1024),
        32,
        8,
        (2700.0, THREE_TIMES),
    ),
    apart(posting(
        names("post_p_one_qp_8", "p, not combined, 8 CTAs x 1024 on one QP", "p_bw"),
        (8, 1024),
        1,
        8,
        (50.0, FOUR_TIMES),
    )),
    posting(
        names("post_put_1", "put_nbi, 512 B, 1 CTA x 1 thread", "put_bw_thread"),
        (1, 1),
        1,
        512,
        (0.18, FOUR_TIMES),
    ),
    posting(
        names("post_put_64", "put_nbi, 512 B, 64 CTAs x 1 thread", "put_bw_thread"),
        (64, 1),
        64,
        512,
        (10.2, FOUR_TIMES),
    ),
    posting(names("post_signal_1", "signal SET, 1 CTA x 1024", "signal_rate"), (1, 1024), 1, 8, (24.0, THREE_TIMES)),
    posting(
        names("post_signal_32", "signal SET, 32 CTAs x 1024", "signal_rate"),
        (32, 1024),
        32,
        8,
        (685.0, THREE_TIMES),
    ),
    Row {
        unit: Unit::Microseconds,
        ..posting(names("post_p_quiet", "p + quiet, one thread", "p_quiet"), (1, 1), 1, 8, (7.3, Goal::AtMost(2.5)))
    },
    // The PE has 64 QPs to each other PE. One thread that looks at one after the other takes 0.7 us
    // for each.
    Row {
        unit: Unit::Microseconds,
        bytes: 64 * 8,
        goal_pes: Some(5),
        reference: None,
        ..posting(
            names("quiet_used", "quiet, block of 256, after a word by each of 64 QPs to each other PE", "quiet_used"),
            (64, BLOCK),
            64,
            8,
            (0.0, Goal::AtMost(18.0)),
        )
    },
    put_signals(
        names("post_put_signal_32", "put_signal, block, 1 KiB, 32 CTAs x 256", "put_signal_rate"),
        Goal::AtLeast(10.0),
    ),
    by_block(put_signals(
        names(
            "context_put_signal_32",
            "put_signal, block, 1 KiB, 32 CTAs x 256, a context for each CTA",
            "context_put_signal_block",
        ),
        Goal::AtLeast(12.0),
    )),
    by_thread(posting(
        names("context_put_1", "put_nbi, 512 B, 1 thread in a context of its own", "context_put_thread"),
        (1, 1),
        1,
        512,
        (0.18, Goal::AtLeast(0.85)),
    )),
    by_thread(posting(
        names("batch_put_1", "put_nbi, 512 B, 1 thread with a Batch, each put rung for", "batch_put"),
        (1, 1),
        1,
        512,
        (0.18, Goal::AtLeast(0.9)),
    )),
    by_thread(posting(
        names(
            "context_put_batched_1",
            "put_nbi, 512 B, 1 thread, batched context, 8 to a doorbell",
            "context_put_batched_8",
        ),
        (1, 1),
        1,
        512,
        (0.18, Goal::AtLeast(2.5)),
    )),
    by_thread(posting(
        names("batch_put_8", "put_nbi, 512 B, 1 thread with a Batch, 8 to a doorbell", "batch_put_8"),
        (1, 1),
        1,
        512,
        (0.18, Goal::AtLeast(2.5)),
    )),
    by_thread(Row {
        unit: Unit::Microseconds,
        ..posting(
            names("context_p_quiet", "p + quiet, one thread in a context of its own", "context_p_quiet"),
            (1, 1),
            1,
            8,
            (7.3, Goal::AtMost(2.4)),
        )
    }),
    by_thread(posting(
        names("context_put_64", "put_nbi, 512 B, 64 CTAs x 1 thread in contexts of their own", "context_put_thread"),
        (64, 1),
        1,
        512,
        (10.2, Goal::AtLeast(45.0)),
    )),
    by_warp(posting(
        names("context_p_combined_1", "p, combined, a context for each warp, 1 CTA x 1024", "context_p_warp"),
        (1, 1024),
        1,
        8,
        (130.0, THREE_TIMES),
    )),
    by_warp(posting(
        names("context_p_combined_8", "p, combined, a context for each warp, 8 CTAs x 1024", "context_p_warp"),
        (8, 1024),
        1,
        8,
        (910.0, THREE_TIMES),
    )),
    Row {
        reference: None,
        goal: None,
        ..by_warp(posting(
            names(
                "null_card_32",
                "requests that the null card completes, 32 CTAs x 1024, a queue for each warp",
                "null_card",
            ),
            (32, 1024),
            1,
            8,
            (0.0, THREE_TIMES),
        ))
    },
    with_limit(
        by_warp(posting(
            names("context_p_combined_32", "p, combined, a context for each warp, 32 CTAs x 1024", "context_p_warp"),
            (32, 1024),
            1,
            8,
            (2700.0, THREE_TIMES),
        )),
        "null_card_32",
    ),
];

/// Returns the row of that name.
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sound() {
        for (index, row) in ROWS.iter().enumerate() {
            assert!(!row.name.contains(char::is_whitespace) && !row.title.contains('|'), "{}", row.name);
            assert!(
                ROWS[..index].iter().all(|other| other.name != row.name && other.title != row.title),
                "{}",
                row.name
            );
            // Groups get equal parts, multiples of 16 bytes, where a message is shared.
            if row.kernel.contains("_bw_") || row.kernel.starts_with("link_") {
                let groups =
                    u64::from(row.ctas) * if row.kernel.ends_with("_thread") { u64::from(row.threads) } else { 1 };
                assert_eq!(row.bytes % (16 * groups), 0, "{}", row.name);
            }
            assert_eq!(row.bytes % 8, 0, "{}", row.name);
            assert!(row.steps.is_power_of_two(), "{}", row.name);
            if let Some(limit) = row.limit {
                let limit = ROWS[..index].iter().find(|other| other.name == limit).unwrap();
                assert!(limit.is_limit() && limit.unit == row.unit, "{}", row.name);
                assert!(
                    !row.unit.is_rate()
                        || (limit.ctas, limit.threads, limit.bytes) == (row.ctas, row.threads, row.bytes)
                );
            }
            assert_eq!(row.goal.is_none(), row.is_limit(), "{}", row.name);
            assert!(matches!(row.path, Path::NullCard { .. }) || row.reference.is_none(), "{}", row.name);
            assert!(!matches!(row.goal, Some(Goal::OfLimit(_))) || row.limit.is_some(), "{}", row.name);
            if let Path::NullCard { qps, .. } = row.path {
                assert!((1..=64).contains(&qps), "{}", row.name);
            }
        }
    }

    #[test]
    fn every_kernel_exists() {
        let kernels = include_str!("../../compare/kernels.h");
        let calls = include_str!("../../compare/host_calls.h");
        let host = include_str!("../../compare/main.cu");
        for row in ROWS {
            if row.kernel == "init" {
                assert!(host.contains("row.kernel == \"init\""));
                continue;
            }
            let is_declared = |by| kernels.contains(&format!("{by}({},", row.kernel));
            let queued = calls.matches(&format!("inline int {}(", row.kernel)).count();
            let declared = ["COMPARE_KERNEL", "COMPARE_THREAD", "COMPARE_APPLICATION"].into_iter().any(is_declared);
            assert!(declared || queued == 2, "{}", row.name); // for both libraries
            assert!(host.contains(&format!("{{\"{}\", ", row.kernel)), "{}", row.name);
        }
    }
}
