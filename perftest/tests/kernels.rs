//! Device code that the tests rely on, against what Rust computes.
#![allow(clippy::unwrap_used)]

use oxshmem::config::Device;
use oxshmem::{Config, LaunchConfig, Pe};
use oxshmem_perftest::pattern::word;

oxshmem::include_module!(CHECKS, "perftest_checks");

/// One test, since a process has one PE at a time.
#[test]
fn parts_cover_every_byte_once_and_patterns_agree() {
    const MOST: usize = 300;
    let pe = Pe::with_config(Config::builder().device(Device::Cpu).build().unwrap()).unwrap();
    let module = pe.load(&CHECKS).unwrap();
    let table = pe.alloc::<u64>(2 * MOST).unwrap();

    let split = module.kernel("split_table").unwrap();
    for bytes in (0..200).chain([255, 256, 1000, 4095, 4096, 4097, 65_537, (1 << 20) - 1]) {
        for parts in [1, 2, 3, 4, 7, 32, 33, 128, MOST as u64] {
            // SAFETY: the kernel takes two uint64_t and a table with two entries for each part.
            unsafe { split.launch(&pe, LaunchConfig::linear(2, 16), (bytes, parts, &table)).unwrap() };
            pe.synchronize().unwrap();
            let table = pe.read(table.view(..2 * parts as usize)).unwrap();
            let mut end = 0;
            for part in table.chunks_exact(2) {
                assert_eq!(part[0].min(bytes), end, "{bytes} bytes in {parts} parts: {table:?}");
                end = (part[0] + part[1]).min(bytes);
            }
            assert_eq!(table.chunks_exact(2).map(|part| part[1]).sum::<u64>(), bytes, "{bytes} bytes in {parts} parts");
            if bytes < 64 * parts {
                let counts: Vec<u64> = table.chunks_exact(2).map(|part| part[1]).collect();
                assert!(
                    counts.windows(2).all(|pair| pair[0] >= pair[1]) && counts[0] - counts[parts as usize - 1] <= 1
                );
            }
        }
    }

    let words = module.kernel("word_table").unwrap();
    for (seed, iteration) in [(0, 0), (7, 1), (u64::MAX, 1 << 40)] {
        // SAFETY: the kernel takes three uint64_t and a table with an entry for each word.
        unsafe { words.launch(&pe, LaunchConfig::linear(1, 32), (seed, iteration, MOST as u64, &table)).unwrap() };
        pe.synchronize().unwrap();
        let expected: Vec<u64> = (0..MOST as u64).map(|index| word(seed, iteration, index)).collect();
        assert_eq!(pe.read(table.view(..MOST)).unwrap(), expected);
    }
    pe.finalize().unwrap();
}
