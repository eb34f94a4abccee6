//! The comparison's kernels, OxSHMEM's half, on the `cpu` device: every row's kernel, in a smaller
//! shape, between three PEs, with its data checked. What reads and writes them on GPUs is
//! `compare/main.cu`.
#![allow(clippy::unwrap_used)]

use oxshmem::launch::{self, LaunchOptions, Output};
use oxshmem::{ContextOptions, LaunchConfig, Operations, Pe, Sharing};
use oxshmem_perftest::compare::rows::Row;
use oxshmem_perftest::compare::table::{ROWS, moe_room};

oxshmem::include_module!(KERNELS, "compare");

const MOST: usize = 16 << 10;
const SLACK: usize = 8 << 10;
/// What all PEs call together, and leaves data.
const COLLECTIVES: [&str; 6] =
    ["alltoall_thread", "alltoall_block", "fcollect_block", "broadcast_block", "sum_block", "exchange_block"];
/// Columns and rows of the mesh.
const SIDE: u64 = 60;
/// Tokens of each PE.
const TOKENS: u64 = 10;
const WARMUP: u64 = 2;
const ITERS: u64 = 17;
const LAST: u64 = WARMUP + ITERS - 1;

/// Starts `as_pe` of this program as the PEs of a job.
fn job(transport: &str) {
    let options = LaunchOptions {
        output: Output::Captured,
        ..LaunchOptions::new(3, std::env::current_exe().unwrap())
            .args(["as_pe", "--exact", "--nocapture"])
            .env("OXSHMEM_DEVICE", "cpu")
            .env("OXSHMEM_TRANSPORT", transport)
            .env("OXSHMEM_TIMEOUT", "60s")
    };
    let outcome = launch::run(&options).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said: Vec<String> = outcome.pes.iter().map(|pe| text(&pe.stdout) + &text(&pe.stderr)).collect();
    assert!(outcome.is_success(), "{transport}: {:?}\n{}", outcome.reports, said.join("\n"));
    assert!(said.iter().all(|said| said.contains("every row was checked")), "{transport}: {said:?}");
}

#[test]
fn every_row_is_right_over_p2p() {
    job("p2p");
}

#[test]
fn every_row_is_right_over_ibgda() {
    job("ibgda");
}

/// Returns the same value as in `kernels.h`.
fn shift(i: u64) -> usize {
    (i % 16 * 64) as usize
}

fn value(base: u64, i: u64, e: u64) -> u64 {
    (base + i).wrapping_mul(0xd1b5_4a32_d192_ed03).wrapping_add(e)
}

fn source(pe: usize, base: u64) -> Vec<u8> {
    (0..MOST + SLACK).map(|i| ((i as u64 * 131 + pe as u64 * 17 + base * 29) >> 3) as u8).collect()
}

/// Returns the row in a shape that the `cpu` device runs quickly.
fn small(row: &Row) -> Row {
    let (ctas, threads) = (row.ctas.min(3), if row.threads > 32 { 64 } else { row.threads });
    let bytes = match row.kernel {
        // A field of a third of the mesh.
        "jacobi_p" | "jacobi_put" => (SIDE / 3 + 3) * SIDE * 4,
        "p_quiet" | "context_p_quiet" | "word_fence" => 8,
        "moe" => 64,
        "p_bw" | "context_p_warp" | "link_words" => 8 * 200,
        "quiet_used" => 8 * u64::from(ctas),
        // A multiple of 16 bytes for each CTA, if there are several.
        kernel if COLLECTIVES.contains(&kernel) => row.bytes.min(960),
        _ if row.bytes > 64 => 16 * 3 * 64,
        _ => row.bytes,
    };
    // A walk of less than the iterations, so that some of it is gone over again.
    let step = match row.kernel {
        "jacobi_p" | "jacobi_put" => SIDE,
        "moe" => moe_room(3, TOKENS, bytes),
        _ if COLLECTIVES.contains(&row.kernel) => 8 * bytes,
        _ => row.step.min(512),
    };
    let stride = if row.kernel == "moe" { TOKENS } else { row.stride };
    Row { ctas, threads, bytes, stride, step, steps: row.steps.min(8), ..*row }
}

/// Returns the mesh of `jacobi.h` after `iterations` iterations.
fn solution(iterations: u64) -> Vec<f32> {
    let side = SIDE as usize;
    let last = (side - 1) as f32;
    let mut field: Vec<f32> = (0..side * side)
        .map(|i| match i % side {
            column if column == 0 || column + 1 == side => {
                ((i / side) as f32 / last) * ((side - 1 - i / side) as f32 / last)
            }
            _ => 0.0,
        })
        .collect();
    for _ in 0..iterations {
        let before = field.clone();
        for i in (1..side - 1).flat_map(|row| (1..side - 1).map(move |column| row * side + column)) {
            field[i] = 0.25 * ((before[i - side] + before[i + side]) + (before[i - 1] + before[i + 1]));
        }
    }
    field
}

/// Experts of each PE, and of a token: as in `moe.h`, like the next three.
const EXPERTS: u64 = 8;
const TOP: u64 = 4;

fn hash(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

fn chosen(pe: usize, token: u64, pes: usize) -> impl Iterator<Item = u64> {
    let (experts, random) = (pes as u64 * EXPERTS, hash((pe as u64) << 32 | token));
    let first = ((random >> 40) % experts).min((random >> 16 & 0xff_ffff) % experts);
    let step = 1 + (random & 0xffff) % ((experts - 1) / (TOP - 1));
    (0..TOP).map(move |k| (first + k * step) % experts)
}

fn expertise(expert: u64, turn: u64) -> u32 {
    hash(turn << 16 | expert) as u32
}

/// Returns the sums of what experts make of a PE's tokens.
fn of_experts(tokens: &[u8], bytes: usize, pe: usize, pes: usize, turn: u64) -> Vec<u8> {
    let sums = (0..).zip(tokens.chunks_exact(bytes)).flat_map(|(token, data)| {
        let more: Vec<u32> = chosen(pe, token, pes).map(|expert| expertise(expert, turn)).collect();
        let words = data.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
        words
            .map(|word| more.iter().fold(0u32, |sum, more| sum.wrapping_add(word.wrapping_add(*more))))
            .collect::<Vec<_>>()
    });
    sums.flat_map(u32::to_ne_bytes).collect()
}

#[test]
fn tokens_go_to_different_experts() {
    for (pes, token) in (1..9).flat_map(|pes| (0..200).map(move |token| (pes, token))) {
        let mut experts: Vec<u64> = chosen(pes - 1, token, pes).collect();
        experts.sort_unstable();
        experts.dedup();
        assert!(experts.len() as u64 == TOP && experts.iter().all(|expert| *expert < pes as u64 * EXPERTS));
    }
}

#[test]
fn as_pe() {
    if !launch::in_job() {
        return;
    }
    let pe = oxshmem::init().unwrap();
    let me = pe.my_pe();
    let kernels = pe.load(&KERNELS).unwrap();
    let dst = pe.alloc_aligned::<u8>(MOST, 256).unwrap();
    let src = pe.alloc_aligned::<u8>(MOST + SLACK, 256).unwrap();
    let signals = pe.alloc_aligned::<u64>(1024, 256).unwrap();
    let clock = pe.alloc_aligned::<u64>(1024, 256).unwrap();
    let other = usize::from(me == 0);
    let mut base = 1;
    // The rows of contexts have at most 3 CTAs of 64 threads, or 3 of one.
    let create = |sharing: Sharing| {
        let options = ContextOptions::new(sharing).count(6).depth(256);
        pe.team_world().create_contexts(&pe, &options).unwrap()
    };
    let [by_thread, by_warp, by_block] = [Sharing::Thread, Sharing::Warp, Sharing::Block].map(create);

    let launch = |row: &Row, kernel: &str, base: u64| {
        let function = kernels.kernel(kernel).unwrap();
        let shape = LaunchConfig::linear(row.ctas, row.threads);
        let args = (
            &dst,
            &src,
            &signals,
            &clock,
            row.bytes,
            row.stride,
            row.step,
            row.steps,
            WARMUP,
            ITERS,
            base,
            i32::try_from(other).unwrap(),
            match row.contexts.map(|contexts| contexts.sharing) {
                Some("warp") => &by_warp,
                Some("block") => &by_block,
                _ => &by_thread,
            }
            .array(),
        );
        // SAFETY: all kernels have these parameters, and the shapes of `small` fit the memory.
        unsafe { function.launch(&pe, shape, args).unwrap() };
        pe.synchronize().unwrap();
    };
    let words = |at: usize, n: usize| -> Vec<u64> {
        let bytes = pe.read(dst.view(at..at + 8 * n)).unwrap();
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    };

    // What the host queues has no kernel; tests/pe/host_collectives.rs checks it.
    let kernels = ROWS.iter().filter(|row| row.has_kernel());
    for row in kernels.map(small).filter(|row| !row.is_limit() || reachable(&pe)) {
        pe.write(&dst, &[0xff; MOST]).unwrap();
        pe.write(&src, &source(me, base)).unwrap();
        pe.write(&clock, &[0; 1024]).unwrap();
        pe.barrier_all().unwrap();
        let starts = ["barrier_all", "sync_all", "flag_barrier", "flag_sync", "jacobi", "moe"];
        let meeting = starts.iter().any(|start| row.kernel.starts_with(start)) || COLLECTIVES.contains(&row.kernel);
        let ping_pong = row.kernel.contains("ping_pong");
        if me == 0 || meeting || (ping_pong && me == 1) {
            launch(&row, row.kernel, base);
            let times = pe.read(clock.view(..2 * row.ctas as usize)).unwrap();
            assert!(times.chunks_exact(2).all(|pair| pair[0] != 0 && pair[0] <= pair[1]), "{}: {times:?}", row.name);
        }
        pe.barrier_all().unwrap();

        let bytes = row.bytes as usize;
        let away = (LAST % row.steps * row.step) as usize;
        let sent = |from: usize| source(other, base)[from..][..bytes].to_vec();
        let data = |at: usize| pe.read(dst.view(at..at + bytes)).unwrap();
        let signal = |at: usize, n: usize| {
            let found = pe.read(signals.view(at..at + n)).unwrap();
            assert!(found.iter().all(|found| *found == base + LAST + 1), "{}: {found:?}", row.name);
        };
        match row.kernel {
            "p_bw" | "context_p_warp" | "link_words" | "quiet_used" if me == 1 => {
                let stride = row.stride as usize;
                let found = words(0, bytes / 8 * stride);
                for (i, word) in found.iter().enumerate() {
                    let expected = if i % stride == 0 { value(base, LAST, (i / stride) as u64) } else { u64::MAX };
                    assert_eq!(*word, expected, "{}, word {i}", row.name);
                }
            }
            "p_quiet" | "context_p_quiet" if me == 1 => {
                assert_eq!(words(away, 2), [value(base, LAST, 0), u64::MAX], "{}", row.name)
            }
            "signal_rate" if me == 1 => signal(0, (row.ctas * row.threads) as usize),
            "put_signal_ping_pong_thread" if me <= 1 => {
                signal(away / 8, 1);
                assert!(data(away) == sent(shift(LAST)), "{}", row.name);
            }
            "signal_ping_pong" | "flag_ping_pong" if me <= 1 => signal(away / 8, 1),
            kernel if COLLECTIVES.contains(&kernel) => {
                let given = |sender: usize, first: usize| source(sender, base)[shift(LAST) + first..][..bytes].to_vec();
                let all = 0..pe.n_pes();
                let expected: Vec<u8> = match kernel {
                    "fcollect_block" => all.flat_map(|sender| given(sender, 0)).collect(),
                    "broadcast_block" => given(LAST as usize % pe.n_pes(), 0),
                    "sum_block" => all
                        .map(|sender| given(sender, 0))
                        .reduce(|sums, more| {
                            let words = |bytes: &[u8]| -> Vec<u64> {
                                bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
                            };
                            let both = words(&sums).into_iter().zip(words(&more));
                            both.flat_map(|(a, b)| a.wrapping_add(b).to_ne_bytes()).collect()
                        })
                        .unwrap(),
                    _ => all.flat_map(|sender| given(sender, me * bytes)).collect(),
                };
                let found = pe.read(dst.view(..expected.len())).unwrap();
                assert!(found == expected, "{}", row.name);
            }
            "jacobi_p" | "jacobi_put" => {
                let (side, pes) = (SIDE as usize, pe.n_pes());
                let (each, more) = ((side - 2) / pes, (side - 2) % pes);
                let (first, rows) = (1 + me * each + me.min(more), each + usize::from(me < more));
                let last = if (WARMUP + ITERS).is_multiple_of(2) { &dst } else { &src };
                let found = pe.read(last.view(4 * side..4 * side * (rows + 1))).unwrap();
                let expected: Vec<u8> = solution(WARMUP + ITERS)[first * side..][..rows * side]
                    .iter()
                    .flat_map(|v| v.to_ne_bytes())
                    .collect();
                assert!(found == expected, "{}", row.name);
            }
            "moe" => {
                let tokens = source(me, base)[shift(LAST)..][..TOKENS as usize * bytes].to_vec();
                let found = pe.read(dst.view(..tokens.len())).unwrap();
                assert!(found == of_experts(&tokens, bytes, me, pe.n_pes(), base + LAST), "{}", row.name);
                // What came from each PE, and what came back, is as much as was sent in all
                // iterations.
                let at = (row.step as usize - 3 * 8 * pe.n_pes()) / 8;
                let tallies = words(8 * at, 2 * pe.n_pes());
                let all = |sender: usize, owner: usize| {
                    let choices = (0..TOKENS).flat_map(|token| chosen(sender, token, pe.n_pes()));
                    let chosen = choices.filter(|expert| *expert / EXPERTS == owner as u64).count() as u64;
                    (WARMUP + ITERS) * (u64::from(row.ctas) << 32 | chosen)
                };
                let arrived = (0..pe.n_pes()).map(|other| all(other, me));
                let answered = (0..pe.n_pes()).map(|other| all(me, other));
                assert_eq!(tallies, arrived.chain(answered).collect::<Vec<_>>(), "{}", row.name);
            }
            _ if meeting && !row.is_limit() => {
                launch(&row, &format!("check_{}", row.kernel), base);
                assert_eq!(pe.read(clock.view(..1)).unwrap(), [0], "{}: wrong rounds", row.name);
            }
            kernel if (kernel.starts_with("get_") || kernel == "link_load") && me == 0 => {
                assert!(data(0) == sent(away), "{}", row.name);
            }
            kernel
                if ["put_", "context_put_", "batch_put", "link_store", "word_fence"]
                    .iter()
                    .any(|start| kernel.starts_with(start))
                    && me == 1 =>
            {
                assert!(data(away) == sent(shift(LAST)), "{}", row.name);
            }
            _ => {}
        }
        pe.barrier_all().unwrap();
        base += WARMUP + ITERS;
    }
    for contexts in [by_thread, by_warp, by_block] {
        contexts.destroy(&pe).unwrap();
    }
    pe.finalize().unwrap();
    println!("every row was checked");
}

/// Returns whether peers can be loaded from and stored to, which the plain kernels do.
fn reachable(pe: &Pe) -> bool {
    matches!(pe.path(usize::from(pe.my_pe() == 0)), Some(oxshmem::Path::LoadStore))
}
