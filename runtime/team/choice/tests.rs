//! Choices of teams of several shapes.

use super::*;

/// Returns the choice where the user says all that is said.
fn chooser_of(shape: Shape, user: &str) -> Chooser {
    let user = user.parse().unwrap();
    Chooser::new(shape, &user, &user)
}

#[test]
fn the_table_is_in_order_and_names_what_exists() {
    for (index, (collective, near, far)) in TABLE.iter().enumerate() {
        assert_eq!(*collective as usize, index);
        assert_eq!(NAMES[index].0, *collective);
        for steps in [near, far] {
            assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0) && steps.last().unwrap().0 == ANY);
            assert!(steps.len() <= CHOICES && steps.iter().all(|(_, algorithm)| exists(*collective, *algorithm)));
        }
        assert!(far.iter().all(|(_, algorithm)| *algorithm != Packets), "packets need load and store");
        assert!(near.iter().all(|(_, algorithm)| *algorithm != Levels), "levels are for several nodes");
    }
    for (index, (algorithm, _)) in ALGORITHMS.iter().enumerate() {
        assert_eq!(*algorithm as usize, index);
    }
}

#[test]
fn what_is_read_is_what_is_written() {
    for text in [
        "",
        "reduce=tree:8K/levels",
        "fcollect=push",
        "fcollect=push,broadcast=packets:4K/tree",
        "reduce=packets:512/tree:64K/push:1M",
        "reduce=packets:512/tree:64K/push:1M/library",
        "fcollect=library:4K/push:1M/library",
    ] {
        assert_eq!(text.parse::<Collectives>().unwrap().to_string(), text);
    }
    for text in [
        ",",
        "fcollect",
        "fcollect=",
        "fcollect=put",
        "gather=push",
        "fcollect=push,fcollect=push",
        "fcollect=tree",
        "alltoalls=tree",
        "push",
        "reduce=packets:4K/tree:4K",
        "reduce=packets/tree",
        "reduce=packets:",
        "reduce=packets:x",
        "reduce=packets:1/tree:2/push:3/tree",
        "reduce=packets:18446744073709551615",
        " reduce=push",
        "reduce=push,",
        "reduce=library",
        "reduce=library:4K/library",
        "reduce=push/library",
        "reduce=push:8K/library:4K",
    ] {
        assert!(text.parse::<Collectives>().is_err(), "{text}");
    }
}

#[test]
fn several_blocks_do_what_is_worth_it() {
    let chooser = |n_pes, overrides: &str| chooser_of(Shape::new(n_pes, 1, 64), overrides);
    let plan = |chooser: &Chooser, collective, bytes, total| {
        chooser.plan(Size { divisible: Some((collective, bytes)), total })
    };
    let two = chooser(2, "");
    assert_eq!(plan(&two, Collective::Reduce, 8, 8), Plan::Blocks(1, Packets));
    assert_eq!(plan(&two, Collective::Reduce, 0, 0), Plan::Blocks(1, Packets));
    assert_eq!(plan(&two, Collective::Reduce, 4 * KIB, 4 * KIB), Plan::Blocks(2, Packets));
    assert_eq!(plan(&two, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Blocks(32, Packets));
    assert_eq!(plan(&two, Collective::Reduce, 128 * KIB, 128 * KIB), Plan::Blocks(64, Packets));
    assert_eq!(plan(&two, Collective::Reduce, 512 * KIB, 512 * KIB), Plan::Blocks(64, Packets));
    assert_eq!(plan(&two, Collective::Reduce, 513 * KIB, 513 * KIB), Plan::Blocks(64, OneShot));
    let mib = 1 << 20;
    assert_eq!(plan(&two, Collective::Reduce, 2 * mib - 1, 2 * mib - 1), Plan::Blocks(64, OneShot));
    assert_eq!(plan(&two, Collective::Reduce, 2 * mib, 2 * mib), Plan::Blocks(64, Push));
    assert_eq!(plan(&two, Collective::Reduce, u64::MAX, u64::MAX), Plan::Blocks(64, Push));
    let few = chooser_of(Shape::new(2, 1, 32), "");
    assert_eq!(plan(&few, Collective::Reduce, 2 * mib, 2 * mib), Plan::Blocks(32, OneShot));
    let three = chooser(3, "");
    assert_eq!(plan(&three, Collective::Reduce, 256 * KIB, 256 * KIB), Plan::Blocks(64, Packets));
    assert_eq!(plan(&three, Collective::Reduce, 257 * KIB, 257 * KIB), Plan::Blocks(43, Relay));
    assert_eq!(plan(&three, Collective::Reduce, 512 * KIB, 512 * KIB), Plan::Blocks(64, Relay));
    assert_eq!(plan(&three, Collective::Reduce, mib, mib), Plan::Blocks(64, Push));
    assert_eq!(plan(&three, Collective::Broadcast, 200 * KIB, 200 * KIB), Plan::Blocks(64, Packets));
    assert_eq!(plan(&three, Collective::Broadcast, 512 * KIB, 512 * KIB), Plan::Blocks(64, Relay));
    let default = Shape::new(4, 1, crate::config::Config::default().collectives_sms());
    let four = chooser_of(default, "");
    let blocks = default.blocks;
    assert_eq!(plan(&four, Collective::Broadcast, 512 * KIB, 512 * KIB), Plan::Blocks(blocks, Relay));
    let eight = chooser(8, "");
    assert_eq!(plan(&eight, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Blocks(57, Packets));
    assert_eq!(plan(&eight, Collective::Reduce, 128 * KIB, 128 * KIB), Plan::Blocks(15, Relay));
    let relay = chooser(4, "reduce=relay:1K/push,broadcast=relay");
    assert_eq!(plan(&relay, Collective::Reduce, 64, 64), Plan::Blocks(1, Relay));
    assert_eq!(plan(&relay, Collective::Reduce, 2 * KIB, 2 * KIB), Plan::Blocks(1, Push));
    assert_eq!(plan(&relay, Collective::Broadcast, 510 * KIB, 510 * KIB), Plan::Blocks(64, Relay));
    assert_eq!(plan(&relay, Collective::Broadcast, mib, mib), Plan::Blocks(64, Push));
    assert_eq!(plan(&chooser(2, "reduce=relay"), Collective::Reduce, 64, 64), Plan::Blocks(1, Push));
    let engines = chooser(2, "alltoall=packets:64/copy,fcollect=copy");
    assert_eq!(plan(&engines, Collective::Alltoall, 64, 128), Plan::Blocks(1, Packets));
    assert_eq!(plan(&engines, Collective::Alltoall, 65, 130), Plan::Copies);
    assert_eq!(plan(&engines, Collective::Fcollect, 8, 16), Plan::Copies);
    assert_eq!(plan(&three, Collective::Broadcast, 2 * mib, 2 * mib), Plan::Blocks(64, Push));
    assert_eq!(plan(&three, Collective::Broadcast, 64 * mib, 64 * mib), Plan::Blocks(16, Push));
    assert_eq!(plan(&two, Collective::Reducescatter, 513 * KIB, 1026 * KIB), Plan::Blocks(64, Push));
    assert_eq!(plan(&two, Collective::Fcollect, 129 * KIB, 258 * KIB), Plan::Blocks(64, Packets));
    assert_eq!(plan(&two, Collective::Fcollect, 512 * KIB, mib), Plan::Blocks(64, Packets));
    assert_eq!(plan(&two, Collective::Fcollect, 513 * KIB, 1026 * KIB), Plan::Blocks(64, Push));
    assert_eq!(plan(&two, Collective::Alltoalls, 4 * KIB, 16 * KIB), Plan::Blocks(2, Push));
    assert_eq!(plan(&two, Collective::Broadcast, 8 * mib, 8 * mib), Plan::Blocks(64, Push));
    assert_eq!(plan(&two, Collective::Broadcast, u64::MAX, u64::MAX), Plan::Blocks(16, Push));
    assert_eq!(plan(&two, Collective::Fcollect, 64 * mib, 128 * mib), Plan::Blocks(64, Push));
    // Copy engines are faster with what is long, if each PE has a GPU.
    let own_devices = |n_pes, overrides: &str| {
        let shape = Shape { own_devices: true, ..Shape::new(n_pes, 1, 64) };
        chooser_of(shape, overrides)
    };
    let apart = own_devices(2, "broadcast=push");
    for collective in [Collective::Fcollect, Collective::Alltoall] {
        assert_eq!(plan(&apart, collective, 96 * mib, 192 * mib), Plan::Copies);
        assert_eq!(plan(&apart, collective, 96 * mib - 1, 192 * mib - 2), Plan::Blocks(64, Push));
        assert_eq!(plan(&two, collective, 96 * mib, 192 * mib), Plan::Blocks(64, Push));
        assert_eq!(plan(&own_devices(4, ""), collective, 32 * mib, 128 * mib), Plan::Copies);
        assert_eq!(plan(&own_devices(8, ""), collective, 32 * mib - 1, 256 * mib - 8), Plan::Blocks(64, Push));
        assert_eq!(plan(&own_devices(1, ""), collective, 128 * mib, 128 * mib), Plan::Blocks(64, Push));
    }
    assert_eq!(plan(&apart, Collective::Reducescatter, 128 * mib, 256 * mib), Plan::Blocks(64, Push));
    assert_eq!(plan(&apart, Collective::Broadcast, 128 * mib, 128 * mib), Plan::Blocks(16, Push));
    assert_eq!(plan(&own_devices(2, ""), Collective::Broadcast, 128 * mib, 128 * mib), Plan::Copies);
    assert_eq!(plan(&own_devices(4, ""), Collective::Broadcast, 128 * mib, 128 * mib), Plan::Blocks(16, Push));
    // A block has room for 128 bytes to each of 63 other members.
    let many = chooser(64, "");
    assert_eq!(plan(&many, Collective::Fcollect, 256, 256 * 64), Plan::Blocks(2, Packets));
    assert_eq!(plan(&many, Collective::Fcollect, 8 * KIB, 512 * KIB), Plan::Blocks(64, Packets));
    assert_eq!(plan(&many, Collective::Fcollect, 8 * KIB + 1, 513 * KIB), Plan::Blocks(64, Push));
    // What the user chooses stays.
    let chosen = chooser(2, "reduce=push,fcollect=packets,broadcast=tree");
    assert_eq!(plan(&chosen, Collective::Reduce, 64, 64), Plan::Blocks(1, Push));
    assert_eq!(plan(&chosen, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Blocks(8, Push));
    assert_eq!(plan(&chosen, Collective::Fcollect, 8 * KIB, 16 * KIB), Plan::Blocks(4, Packets));
    assert_eq!(plan(&chosen, Collective::Broadcast, mib, mib), Plan::OneBlock);
    // Members of which some are reached over the network.
    let far = |n_pes, nodes, overrides: &str| chooser_of(Shape::new(n_pes, nodes, 64), overrides);
    let two_nodes = far(4, 2, "");
    assert_eq!(plan(&two_nodes, Collective::Reduce, 8 * KIB, 8 * KIB), Plan::OneBlock);
    assert_eq!(plan(&two_nodes, Collective::Reduce, 64 * KIB, 64 * KIB), Plan::Levels(1));
    assert_eq!(plan(&two_nodes, Collective::Reduce, mib, mib), Plan::Levels(8));
    assert_eq!(plan(&two_nodes, Collective::Fcollect, 8, 32), Plan::Levels(1));
    assert_eq!(plan(&two_nodes, Collective::Alltoalls, mib, mib), Plan::Levels(8));
    assert_eq!(plan(&far(1000, 2, ""), Collective::Alltoalls, mib, mib), Plan::OneBlock);
    assert_eq!(plan(&far(4, 2, "reduce=push"), Collective::Reduce, mib, mib), Plan::OneBlock);
    // Members that collect different lengths use as many blocks, and one kernel.
    assert_eq!(
        [8, mib, u64::MAX].map(|bytes| plan(&two_nodes, Collective::Collect, bytes, bytes)),
        [Plan::Levels(4); 3]
    );
    let collect = |chooser: &Chooser| [0, 8, u64::MAX].map(|bytes| plan(chooser, Collective::Collect, bytes, bytes));
    let by_blocks = |blocks, in_packets| [Plan::Collect { blocks, in_packets }; 3];
    assert_eq!(collect(&two), by_blocks(32, abi::BLOCKS_PACKETS));
    assert_eq!(collect(&chooser_of(Shape::new(8, 1, 4), "")), by_blocks(4, abi::BLOCKS_PACKETS));
    for (row, in_packets) in [
        ("push", 0),
        ("packets", ANY),
        ("packets:4K/push", 4 * KIB),
        ("packets:4K/push:64K/library", 4 * KIB),
        ("push:64/packets:4K/push", 4 * KIB),
        ("push:4K/library", 0),
        ("library:4K/push", 4 * KIB),
        ("packets:1M/library", mib),
        ("packets:4K/library", abi::BLOCKS_PACKETS),
    ] {
        assert_eq!(collect(&chooser(2, &format!("collect={row}"))), by_blocks(32, in_packets), "{row}");
    }
    let steps = |text: &str| [8, mib].map(|bytes| plan(&far(4, 2, text), Collective::Collect, bytes, bytes));
    assert_eq!(steps("collect=push:64K/levels"), [Plan::Levels(4); 2]);
    assert_eq!(steps("collect=levels:64K"), [Plan::OneBlock; 2]);
    // The lengths of all members have no room beside those of one block.
    let of_one_block = chooser_of(Shape::new(100_000, 2, 1), "");
    assert_eq!(plan(&of_one_block, Collective::Collect, mib, mib), Plan::OneBlock);
    // Sums of 1000 nodes have no room, and one node has nothing to send.
    assert_eq!(plan(&far(1000, 1000, ""), Collective::Reduce, mib, mib), Plan::OneBlock);
    assert_eq!(plan(&far(1000, 1000, ""), Collective::Fcollect, mib, mib), Plan::Levels(8));
    assert_eq!(plan(&far(1000, 1, "reduce=levels"), Collective::Reduce, mib, mib), Plan::OneBlock);
    assert_eq!(plan(&far(2, 1, "reduce=levels"), Collective::Reduce, mib, mib), Plan::Blocks(64, Push));
}

#[test]
fn sizes_that_are_left_to_the_library_are_as_without_a_choice() {
    let mib = 1u64 << 20;
    let shape = |n_pes| Shape { own_devices: true, ..Shape::new(n_pes, 1, 64) };
    let plan = |n_pes, text: &str, collective, bytes| {
        let chooser = chooser_of(shape(n_pes), text);
        chooser.plan(Size { divisible: Some((collective, bytes)), total: bytes })
    };
    // Copy engines, relay, one-shot, and packets of several blocks.
    for (n_pes, collective, bytes) in [
        (2, Collective::Broadcast, 128 * mib),
        (4, Collective::Alltoall, 64 * mib),
        (4, Collective::Reduce, 512 * KIB),
        (2, Collective::Reduce, mib),
        (2, Collective::Fcollect, 256 * KIB),
    ] {
        let row = |rest: &str| format!("{}=push:64K{rest}", name(collective));
        let own = plan(n_pes, "", collective, bytes);
        assert_ne!(plan(n_pes, &row("/push"), collective, bytes), own, "{n_pes} PEs, {bytes} bytes");
        assert_eq!(plan(n_pes, &row("/library"), collective, bytes), own, "{n_pes} PEs, {bytes} bytes");
        assert_eq!(plan(n_pes, &row("/library"), collective, 64), Plan::Blocks(1, Push));
    }
    let first = |bytes| plan(2, "reduce=library:4K/push", Collective::Reduce, bytes);
    assert_eq!([64, 64 * KIB].map(first), [Plan::Blocks(1, Packets), Plan::Blocks(8, Push)]);
    // Kernels have the library's steps there, too.
    let of_block = |text: &str| describe(Shape::new(2, 1, 64), &text.parse().unwrap());
    assert!(of_block("broadcast=packets:1K/tree:2K/library").contains("broadcast=packets:1K/tree:2K/packets:8K/push"));
    assert!(of_block("broadcast=library:2K/tree:4K/library").contains("broadcast=packets:2K/tree:4K/packets:8K/push"));
    assert!(of_block("broadcast=library:64K/tree").contains("broadcast=packets:8K/push:64K/tree"));
    assert!(of_block("fcollect=push:16K/library").contains("fcollect=push:16K/push"));
}

#[test]
fn what_was_measured_on_streams_says_nothing_of_kernels() {
    let row = |chooser: &Chooser, collective: Collective| {
        chooser.choices()[collective as usize].map(|entry| (entry.up_to_bytes, entry.algorithm))
    };
    let tuned = |n_pes, nodes, user: &str, measured: &str| {
        let user: Collectives = user.parse().unwrap();
        let in_use = user.in_use(64, &measured.parse().unwrap());
        Chooser::new(Shape::new(n_pes, nodes, 64), &user, &in_use)
    };
    let plan = |chooser: &Chooser, collective, bytes| {
        chooser.plan(Size { divisible: Some((collective, bytes)), total: bytes })
    };
    let reduce = Collective::Reduce;
    let own = |n_pes, nodes, collective| row(&tuned(n_pes, nodes, "", ""), collective);
    for measured in
        ["reduce=packets:16K/library", "reduce=oneshot:1K/push:64K/library", "reduce=push", "reduce=oneshot:4K"]
    {
        let near = tuned(2, 1, "", measured);
        assert_eq!((near.chosen(), row(&near, reduce)), (0, own(2, 1, reduce)), "{measured}");
    }
    // Streams have it, and so do kernels where the user says it.
    assert_eq!(plan(&tuned(2, 1, "", "reduce=push"), reduce, 64), Plan::Blocks(1, Push));
    let user = tuned(2, 1, "reduce=push", "reduce=packets,fcollect=push");
    assert_eq!((user.chosen(), row(&user, reduce)), (1 << reduce as u32, [(ANY, Push as u32); 3]));
    assert_eq!(row(&user, Collective::Fcollect), own(2, 1, Collective::Fcollect));
    // The same with copy engines in place of multiprocessors.
    let engines = Collectives::default().in_use(0, &Collectives::default());
    let engines = Chooser::new(Shape::new(2, 1, 1), &Collectives::default(), &engines);
    let broadcast = Collective::Broadcast;
    assert_eq!((engines.chosen(), row(&engines, broadcast)), (0, own(2, 1, broadcast)));
    assert_eq!(plan(&engines, broadcast, 64), Plan::Copies);
    // What one block does on streams, it finds in the team's row.
    let one = tuned(2, 1, "", "broadcast=tree,alltoalls=packets:1K/library");
    assert_eq!(plan(&one, broadcast, 64), Plan::OneBlock);
    assert_eq!(row(&one, broadcast)[0], (ANY, Tree as u32));
    assert_eq!(plan(&one, Collective::Alltoalls, 512), Plan::OneBlock);
    assert_eq!(row(&one, Collective::Alltoalls)[0], (1024, Packets as u32));
    let far = tuned(4, 2, "", "reduce=push:1K/levels");
    assert_eq!([1024, 1025].map(|bytes| plan(&far, reduce, bytes)), [Plan::OneBlock, Plan::Levels(1)]);
    assert_eq!(row(&far, reduce), [(1024, Push as u32), (8 * KIB, Tree as u32), (ANY, Push as u32)]);
}

#[test]
fn packets_are_used_where_they_can_be() {
    let overrides: Collectives = "broadcast=packets:1M/tree:2M,reduce=packets".parse().unwrap();
    let shape = |near: bool, n_pes| Shape::new(n_pes, if near { 1 } else { 2 }, 64);
    let row = |near, n_pes, collective: Collective| {
        let rows = Chooser::new(shape(near, n_pes), &overrides, &overrides).choices();
        rows[collective as usize].map(|entry| (entry.up_to_bytes, entry.algorithm))
    };
    let (packets, push, tree) = (Packets as u32, Push as u32, Tree as u32);
    assert_eq!(row(true, 8, Collective::Broadcast), [(2048, packets), (2 << 20, tree), (ANY, push)]);
    assert_eq!(row(false, 8, Collective::Broadcast), [(2 << 20, tree), (ANY, push), (ANY, push)]);
    assert_eq!(row(true, 2, Collective::Reduce), [(8192, packets), (ANY, push), (ANY, push)]);
    assert_eq!(row(false, 2, Collective::Reduce), [(ANY, push); 3]);
    assert_eq!(row(true, 64, Collective::Fcollect)[0], (256, packets));
    // The tree of reductions is for teams that the network connects.
    assert!(describe(shape(true, 4), &"reduce=tree".parse().unwrap()).contains("reduce=push"));
    assert!(describe(shape(false, 4), &"reduce=tree".parse().unwrap()).contains("reduce=tree"));
    let late: Collectives = "reduce=packets:1K/push:64K/packets".parse().unwrap();
    let rows = Chooser::new(shape(true, 2), &late, &late).choices();
    let reduce = rows[Collective::Reduce as usize].map(|entry| (entry.up_to_bytes, entry.algorithm));
    assert_eq!(reduce, [(1024, packets), (65536, push), (ANY, push)]);
    let text = describe(shape(false, 4), &overrides);
    assert!(text.starts_with("broadcast=tree:2M/push,collect=levels,"), "{text}");
    assert!(describe(shape(true, 4), &overrides).contains("reduce=packets:4K/push"));
}
