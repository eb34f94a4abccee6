//! The host API: transfers, atomics, signals, the symmetric heap, and the life of a PE.

use oxshmem::by_address::{Variables, Wanted, put_word, wait_until_all};
use oxshmem::{AtomicValue, BitwiseValue, Compare, Config, Error, HeapError, Operations, Pe};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Outcome;
use crate::rig::mix;

fn pattern(pe: usize, seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (mix(((pe as u64) << 32) | (seed << 24) | (i / 8)) >> (i % 8 * 8)) as u8).collect()
}

/// Puts and gets of all lengths, the staging buffer's (1 MiB) included, at all offsets, to all PEs.
pub fn transfers(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    const ZONE: usize = 3 << 20;
    let memory = pe.alloc::<u8>(ZONE * n)?;
    let lengths = [0, 1, 7, 28, 29, 64, 1000, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) / 2];
    for (round, length) in lengths.into_iter().enumerate() {
        let at = round * 3 + 1;
        for to in 0..n {
            pe.put(memory.view(me * ZONE + at..), &pattern(me, (round * n + to) as u64, length), to)?;
        }
        pe.barrier_all()?;
        for from in 0..n {
            let start = from * ZONE + at;
            let seen = pe.read(memory.view(start..start + length))?;
            assert!(seen == pattern(from, (round * n + me) as u64, length), "{length} bytes from PE {from}");
            // The other PEs' copies of what came from there.
            let to = (me + 1) % n;
            let seen = pe.get_vec(memory.view(start..start + length), to)?;
            assert!(seen == pattern(from, (round * n + to) as u64, length), "get of {length} bytes from PE {to}");
        }
        pe.barrier_all()?;
    }
    // Typed, and elements that do not divide the staging buffer.
    let doubles = pe.alloc::<f64>(100)?;
    let triples = pe.alloc::<[u8; 3]>(400_000)?;
    let data: Vec<[u8; 3]> = (0..400_000u32).map(|i| [i as u8, (i >> 8) as u8, me as u8]).collect();
    let next = (me + 1) % n;
    pe.put(doubles.view(10..), &[1.5, -0.0, f64::MAX], next)?;
    pe.put(&triples, &data, next)?;
    pe.barrier_all()?;
    assert_eq!(pe.get_vec(doubles.view(10..13), next)?, [1.5, -0.0, f64::MAX]);
    let seen = pe.get_vec(triples.view(..400_000), me)?;
    assert!(seen.iter().enumerate().all(|(i, t)| *t == [i as u8, (i >> 8) as u8, ((me + n - 1) % n) as u8]));

    ranges(&pe)?;
    pe.finalize()?;
    Ok(())
}

/// Ranges outside a slice are refused, and change nothing.
fn ranges(pe: &Pe) -> Outcome {
    let slice = pe.alloc::<u32>(8)?;
    let out_of_range = |result: oxshmem::Result<()>, first: usize, last: usize| match result {
        Err(Error::Heap(HeapError::OutOfRange { first: f, last: l, len: 8, .. })) => {
            assert_eq!((f, l), (first, last));
        }
        other => panic!("{first}..{last} of 8: {other:?}"),
    };
    too_short(pe.put(slice.view(7..), &[1, 2], 0), 2, 1);
    out_of_range(pe.put(slice.view(usize::MAX..), &[1], 0), usize::MAX, 8);
    out_of_range(pe.put(slice.view(..=usize::MAX), &[1], 0), 0, usize::MAX);
    out_of_range(pe.get_vec(slice.view(8..9), 0).map(drop), 8, 9);
    #[allow(clippy::reversed_empty_ranges)]
    out_of_range(pe.get_vec(slice.view(3..2), 0).map(drop), 3, 2);
    too_short(pe.write(slice.view(8..), &[1]), 1, 0);
    out_of_range(pe.read(slice.view(..9)).map(drop), 0, 9);
    out_of_range(pe.atomic(slice.at(8), 0).fetch_add(1).map(drop), 8, 9);
    out_of_range(pe.read(slice.view(4..9).view(..1)).map(drop), 4, 9);
    let part = slice.view(4..6);
    too_short(pe.put(part.view(1..), &[1, 2], 0), 2, 1);
    let error = pe.read(part.view(1..3)).unwrap_err();
    assert!(matches!(error, Error::Heap(HeapError::OutOfRange { first: 1, last: 3, len: 2, .. })), "{error}");
    assert!(error.to_string().contains("the allocation of 32 bytes at offset"), "{error}");
    assert!(error.to_string().contains(file!()), "{error}");
    let error = pe.atomic(slice.view(..2), 0).fetch().unwrap_err();
    assert!(matches!(error, Error::Heap(HeapError::NotOneElement { len: 2, .. })), "{error}");
    assert_eq!(pe.read(slice.view(..8))?, [0; 8]);
    // At the end of a slice, and nothing at all.
    pe.put(slice.view(8..), &[0u32; 0], 0)?;
    assert!(pe.get_vec(slice.view(8..8), 0)?.is_empty());
    // A PE that does not exist.
    for error in [pe.put(&slice, &[1], pe.n_pes()), pe.get_vec(slice.view(..1), usize::MAX).map(drop)] {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("does not exist") && text.contains(&format!("0 to {}", pe.n_pes() - 1)), "{text}");
    }
    Ok(())
}

fn too_short(result: oxshmem::Result<()>, needs: usize, has: usize) {
    let Err(Error::Heap(HeapError::TooShort { needed, len, .. })) = result else { panic!("{result:?}") };
    assert_eq!((needed, len), (needs, has));
}

/// put_signal, signal, signal_wait_until, in a ring.
pub fn signals(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    const ROOM: usize = (5 << 20) / 2;
    let data = pe.alloc::<u8>(ROOM)?;
    let words = pe.alloc::<u64>(4)?;
    for (round, length) in [0usize, 1, 100, 1 << 20, ROOM].into_iter().enumerate() {
        let value = round as u64 + 1;
        pe.put_signal(&data, &pattern(me, value, length), words.signal(0).set(value), next)?;
        assert_eq!(pe.signal_wait_until(words.signal(0), Compare::Ge, value)?, value);
        assert!(pe.read(data.view(..length))? == pattern(previous, value, length), "{length} bytes");
        // The reader is done.
        pe.signal(words.signal(1).add(1), previous)?;
        assert_eq!(pe.signal_wait_until(words.signal(1), Compare::Eq, value)?, value);
    }
    for (index, (cmp, against, sent)) in
        [(Compare::Ne, 0, 5), (Compare::Gt, 5, 6), (Compare::Le, 2, 2), (Compare::Lt, 2, 1)].into_iter().enumerate()
    {
        pe.signal(words.signal(2).set(sent), next)?;
        assert_eq!(pe.signal_wait_until(words.signal(2), cmp, against)?, sent, "{cmp:?}");
        pe.signal(words.signal(3).add(1), previous)?;
        pe.signal_wait_until(words.signal(3), Compare::Eq, index as u64 + 1)?;
    }
    // The fence orders a put and a later put.
    pe.put(&data, &[1], next)?;
    pe.fence()?;
    pe.quiet()?;
    pe.sync_all()?;
    pe.finalize()?;
    Ok(())
}

fn bitwise<T: BitwiseValue + PartialEq + std::fmt::Debug>(pe: &Pe, values: [T; 6]) -> Outcome {
    let [zero, one, most, wrapped, mixed, masked] = values;
    let words = pe.alloc::<T>(2)?;
    let next = (pe.my_pe() + 1) % pe.n_pes();
    pe.atomic(words.at(1), next).set(most)?;
    assert_eq!(pe.atomic(words.at(1), next).fetch_add(one)?, most);
    assert_eq!(pe.atomic(words.at(1), next).fetch()?, wrapped);
    assert_eq!(pe.atomic(words.at(1), next).compare_swap(one, zero)?, wrapped);
    assert_eq!(pe.atomic(words.at(1), next).compare_swap(wrapped, mixed)?, wrapped);
    assert_eq!(pe.atomic(words.at(1), next).fetch_and(masked)?, mixed);
    assert_eq!(pe.atomic(words.at(1), next).fetch_or(mixed)?, masked);
    assert_eq!(pe.atomic(words.at(1), next).fetch_xor(mixed)?, mixed);
    assert_eq!(pe.atomic(words.at(1), next).swap(most)?, zero);
    pe.barrier_all()?;
    assert_eq!(pe.read(words.view(..2))?, [zero, most]);
    Ok(())
}

fn real<T: AtomicValue + PartialEq + std::fmt::Debug>(pe: &Pe, first: T, second: T) -> Outcome {
    let word = pe.alloc::<T>(1)?;
    let next = (pe.my_pe() + 1) % pe.n_pes();
    pe.atomic(word.at(0), next).set(first)?;
    assert_eq!(pe.atomic(word.at(0), next).swap(second)?, first);
    assert_eq!(pe.atomic(word.at(0), next).fetch()?, second);
    Ok(())
}

pub fn atomics(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    bitwise::<u32>(&pe, [0, 1, u32::MAX, 0, 0xf0f0_1234, 0x0ff0_0030 & 0xf0f0_1234])?;
    bitwise::<i32>(&pe, [0, 1, i32::MAX, i32::MIN, -5, -7 & -5])?;
    bitwise::<u64>(&pe, [0, 1, u64::MAX, 0, 0xf0f0_1234 << 20, (0x0ff0_0030 & 0xf0f0_1234) << 20])?;
    bitwise::<i64>(&pe, [0, 1, i64::MAX, i64::MIN, -5 << 33, (-7 & -5) << 33])?;
    real::<f32>(&pe, -1.5, f32::MIN_POSITIVE)?;
    real::<f64>(&pe, f64::NEG_INFINITY, 1e-300)?;
    // All PEs at one word.
    let sum = pe.alloc::<i64>(1)?;
    for _ in 0..20 {
        pe.atomic(sum.at(0), 0).fetch_add(-3)?;
    }
    pe.barrier_all()?;
    assert_eq!(pe.atomic(sum.at(0), 0).fetch()?, -60 * pe.n_pes() as i64);
    pe.finalize()?;
    Ok(())
}

/// Allocation, alignment, growth over many chunks with traffic in between, exhaustion, calls that
/// differ, free of a part.
pub fn heap(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let next = (me + 1) % n;
    let own = pe.live_allocations();
    let mut random = StdRng::seed_from_u64(5);
    let mut live: Vec<(oxshmem::SymmetricSlice<u8>, u64)> = Vec::new();
    let check = |slice: &oxshmem::SymmetricSlice<u8>, tag: u64| -> Outcome {
        let seen = pe.read(slice)?;
        assert!(seen == pattern((me + n - 1) % n, tag, slice.len()), "allocation {tag} at {:#x}", slice.address());
        Ok(())
    };
    for tag in 0..60u64 {
        let len = if tag % 7 == 0 { random.random_range(1..3 << 20) } else { random.random_range(0..20_000) };
        // Up to the chunk of these jobs, 1 MiB, of which few fit the heap at a time.
        let align = 1usize << random.random_range(if tag % 10 == 0 { 20..21 } else { 0..13 });
        let slice = pe.alloc_aligned::<u8>(len, align)?;
        assert_eq!(slice.address() % align as u64, 0, "alignment {align}");
        assert!(pe.read(slice.view(..len))?.iter().all(|byte| *byte == 0), "memory of alloc is zero");
        pe.barrier_all()?;
        pe.put(&slice, &pattern(me, tag, len), next)?;
        pe.barrier_all()?;
        check(&slice, tag)?;
        live.push((slice, tag));
        if random.random_bool(0.4) {
            // Reused memory is zero again.
            let (slice, tag) = live.swap_remove(random.random_range(0..live.len()));
            check(&slice, tag)?;
            pe.free(slice)?;
        }
    }
    for (slice, tag) in &live {
        check(slice, *tag)?;
    }
    assert_eq!(pe.live_allocations(), own + live.len());
    for (slice, _) in live {
        pe.free(slice)?;
    }
    assert_eq!(pe.live_allocations(), own);
    refused(&pe)?;
    pe.finalize()?;
    Ok(())
}

fn refused(pe: &Pe) -> Outcome {
    let (me, n) = (pe.my_pe(), pe.n_pes());
    let max = pe.config().heap_max().0;
    // More than there is.
    let error = pe.alloc::<u8>(max as usize + 1).unwrap_err();
    let text = error.to_string();
    for part in
        [(max + 1).to_string(), max.to_string(), "OXSHMEM_HEAP_MAX".into(), "bytes free".into(), "requested".into()]
    {
        assert!(text.contains(&part), "{part:?} is missing in {text:?}");
    }
    let Error::Heap(HeapError::Exhausted { requested, free, .. }) = error else { panic!("{error:?}") };
    assert!(requested == max + 1 && free < max);
    assert!(matches!(pe.alloc::<u64>(usize::MAX), Err(Error::Heap(HeapError::Exhausted { .. }))));
    // Until nothing fits any more, and after a free it does again.
    let mut pieces = Vec::new();
    let piece = (max / 8) as usize;
    let left = loop {
        match pe.alloc::<u8>(piece) {
            Ok(slice) => pieces.push(slice),
            Err(Error::Heap(HeapError::Exhausted { requested, free, .. })) => break (requested, free),
            Err(error) => return Err(error.into()),
        }
    };
    assert!(left.0 == piece as u64 && pieces.len() >= 6, "{left:?} after {} pieces", pieces.len());
    let last = pieces.pop().unwrap();
    let address = last.address();
    pe.put(last.view(piece - 1..), &[7], (me + 1) % n)?;
    pe.barrier_all()?;
    assert_eq!(pe.read(last.view(piece - 1..piece))?, [7]);
    pe.free(last)?;
    let again = pe.alloc::<u8>(piece)?;
    assert_eq!(again.address(), address);
    // A part is not an allocation.
    let error = pe.free_at(address + 128).unwrap_err();
    assert!(matches!(error, Error::Heap(HeapError::NotWhole { address: at, .. }) if at == address + 128), "{error}");
    pe.free(again)?;
    for piece in pieces {
        pe.free(piece)?;
    }
    // Alignments.
    let chunk = pe.config().heap_chunk().0;
    for align in [3, chunk as usize * 2] {
        let error = pe.alloc_aligned::<u8>(1, align).unwrap_err();
        assert!(matches!(error, Error::Heap(HeapError::Alignment { .. })), "{align}: {error:?}");
    }
    // Calls that differ.
    if n > 1 {
        let error = pe.alloc::<u32>(if me == 1 { 10 } else { 20 }).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Heap(HeapError::Asymmetric { .. })), "{error:?}");
        assert!(text.contains("40 bytes") && text.contains("80 bytes"), "{text}");
        let (a, b) = (pe.alloc::<u32>(1)?, pe.alloc::<u32>(1)?);
        let before = pe.live_allocations();
        let error = pe.free(if me == 0 { a } else { b }).unwrap_err();
        assert!(matches!(error, Error::Heap(HeapError::Asymmetric { .. })), "{error:?}");
        assert_eq!(pe.live_allocations(), before, "nothing was freed");
    }
    misaligned(pe)?;
    // The heap is as usable as before.
    let slice = pe.alloc::<u64>(1)?;
    pe.put(&slice, &[me as u64], (me + 1) % n)?;
    pe.barrier_all()?;
    assert_eq!(pe.read(slice.view(..1))?, [((me + n - 1) % n) as u64]);
    Ok(())
}

/// Elements that are not aligned to their size, for which a GPU would end its context.
fn misaligned(pe: &Pe) -> Outcome {
    const UINT32: u32 = 6;
    let (cells, stream) = (pe.alloc::<u64>(4)?, pe.create_stream()?);
    let (on, at) = (pe.on(&stream), cells.address());
    let refused = |call: oxshmem::Result<()>, at: u64, bytes: usize| match call {
        Err(Error::Heap(HeapError::Misaligned { address, element_bytes })) => {
            assert_eq!((address, element_bytes), (at, bytes));
        }
        other => panic!("{at:#x}, {bytes} bytes: {other:?}"),
    };
    for bytes in [2, 4, 8] {
        let odd = at + bytes as u64 / 2;
        refused(put_word(&on, odd, 1, bytes, pe.my_pe()), odd, bytes);
    }
    let odd = at + 2;
    for (address, status, wanted) in [(odd, 0, Wanted::Same(0)), (at, odd, Wanted::Same(0)), (at, 0, Wanted::Each(odd))]
    {
        let variables = Variables { element: UINT32, address, n: 1, status };
        // SAFETY: status and value are inside the cells.
        refused(unsafe { wait_until_all(&on, &variables, Compare::Eq, wanted) }, odd, 4);
    }
    on.synchronize()?;
    assert_eq!(pe.read(&cells)?, [0; 4]);
    Ok(pe.free(cells)?)
}

/// init and finalize several times in one process, with different heaps; one PE at a time.
pub fn rounds(_: &[String]) -> Outcome {
    for round in 0..4u64 {
        let chunk = oxshmem::config::ByteSize(2 << (20 + round % 2)); // what GPUs allocate, and twice that
        let pe = Pe::with_config(Config::builder().heap_chunk(chunk).env().build()?)?;
        assert_eq!(pe.config().heap_chunk(), chunk);
        assert!(matches!(oxshmem::init(), Err(Error::Occupied)));
        let (me, n) = (pe.my_pe(), pe.n_pes());
        let slice = pe.alloc::<u64>(200_000)?;
        assert!(pe.read(slice.view(..200_000))?.iter().all(|word| *word == 0), "memory of a new job is zero");
        pe.barrier_all()?;
        let data: Vec<u64> = (0..200_000).map(|i| mix(i + round) ^ me as u64).collect();
        pe.put(&slice, &data, (me + 1) % n)?;
        pe.barrier_all()?;
        assert_eq!(pe.read(slice.view(199_999..200_000))?, [mix(199_999 + round) ^ ((me + n - 1) % n) as u64]);
        assert_eq!(pe.atomic(slice.at(0), me).fetch_add(1)?, mix(round) ^ ((me + n - 1) % n) as u64);
        pe.finalize()?;
    }
    Ok(())
}

/// Values that PEs must agree on, but do not.
pub fn mismatch(_: &[String]) -> Outcome {
    let odd = std::env::var("OXSHMEM_RANK")? == "1";
    let max = oxshmem::config::ByteSize(if odd { 64 << 20 } else { 128 << 20 });
    let error = Pe::with_config(Config::builder().heap_max(max).env().build()?).unwrap_err();
    let text = error.to_string();
    let names_both =
        text.contains(&format!("OXSHMEM_HEAP_MAX={}", 64 << 20)) && text.contains(&format!("={}", 128 << 20));
    // Or the job was over before this PE compared.
    let told = text.contains("cannot initialise") && text.contains("OXSHMEM_HEAP_MAX");
    assert!(matches!(error, Error::Mismatch { .. }) && names_both || told, "{text}");
    Ok(())
}

/// Resident memory with the defaults, after a typical use.
pub fn memory(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let next = (pe.my_pe() + 1) % pe.n_pes();
    let slice = pe.alloc::<u8>(16 << 20)?;
    pe.put(&slice, &vec![3; 16 << 20], next)?;
    pe.barrier_all()?;
    assert_eq!(pe.get_vec(slice.view((16 << 20) - 1..16 << 20), next)?, [3]);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let (resident, most) = (field("VmRSS:").unwrap(), field("VmHWM:").unwrap());
    println!("resident {resident} KiB, at most {most} KiB");
    assert!(most < 256 << 10, "{most} KiB resident");
    pe.finalize()?;
    Ok(())
}
