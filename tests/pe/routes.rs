//! What is counted by the way between cards, beside the puts that were made.

use std::collections::BTreeMap;

use oxshmem::config::Rails;
use oxshmem::{Operations, Path, RouteCount};

use crate::Outcome;
use crate::rig::Rig;

oxshmem::include_module!(RMA, "rma");

/// What tells routes apart.
fn key(route: &RouteCount) -> (u32, bool, Option<u32>, Option<u32>, &'static str, &'static str) {
    (route.card, route.leaves_node, route.rail, route.peer_rail, route.crossing, route.peer_crossing)
}

/// `routes PUTS BYTES`: makes that many puts, of that many bytes each, to each PE that is reached
/// over the network. Each route counts those to its peers, and nothing else.
pub fn routes(args: &[String]) -> Outcome {
    let (puts, bytes): (u64, usize) = (args[0].parse()?, args[1].parse()?);
    let rig = Rig::new(&RMA)?;
    let (pe, me, n) = (&rig.pe, rig.me(), rig.n_pes());
    let inbox = pe.alloc::<u8>(bytes * n)?;
    let data = vec![u8::try_from(me)? + 1; bytes];
    let far = |peer: &usize| matches!(pe.path(*peer), Some(Path::Ibgda | Path::Ibrc));
    // PEs of this node are, or none is.
    let all_far = (0..n).all(|peer| peer == me || far(&peer));
    pe.barrier_all()?;
    // What meetings have posted is not waited for.
    pe.quiet()?;
    let before = pe.counters()?;
    for peer in (0..n).filter(far) {
        for _ in 0..puts {
            pe.put(inbox.view(me * bytes..), &data, peer)?;
        }
    }
    // A short put travels in its work request, and returns before that is executed.
    pe.quiet()?;
    let after = pe.counters()?;
    pe.barrier_all()?;
    let received = pe.read(&inbox)?;
    for peer in (0..n).filter(far) {
        let expected = if puts == 0 { 0 } else { u8::try_from(peer)? + 1 };
        assert!(received[peer * bytes..][..bytes].iter().all(|byte| *byte == expected), "from PE {peer}");
    }

    let sends = |route: &&RouteCount| !route.receives_only;
    let then: BTreeMap<_, &RouteCount> = before.routes.iter().filter(sends).map(|route| (key(route), route)).collect();
    assert_eq!(then.len(), after.routes.iter().filter(sends).count());
    // Where PEs push, all queue pairs to a peer lead to its one card; otherwise each of this PE's
    // cards has some.
    let pushes = pe.config().rails() == Rails::Push;
    let cards = if pushes { 1 } else { after.cards.len() };
    for now in &after.routes {
        let connections = now.peers * pe.config().qps_per_peer() as usize / cards;
        assert_eq!(now.connections, connections, "{now:?}");
        assert!(pushes || !now.receives_only, "{now:?}");
    }
    let mut peers = vec![0; cards];
    for now in after.routes.iter().filter(sends) {
        let then = then[&key(now)];
        // The put of the host is a kernel of one block, which posts to the first queue pair.
        let is_first = pushes || now.card == 0;
        let posted = if is_first && (now.leaves_node || all_far) { puts * now.peers as u64 } else { 0 };
        let counted = now.traffic.messages.zip(now.traffic.message_bytes);
        let Some((messages, sent)) = counted else { return Err(format!("not counted: {now:?}").into()) };
        assert_eq!(messages - then.traffic.messages.unwrap_or(0), posted, "{now:?}");
        assert_eq!(sent - then.traffic.message_bytes.unwrap_or(0), posted * bytes as u64, "{now:?}");
        peers[if pushes { 0 } else { now.card as usize }] += now.peers;
    }
    // Device code has queue pairs to peers that it reaches by load and store, too.
    assert_eq!(peers, vec![n - 1; cards]);
    pe.free(inbox)?;
    rig.finish()
}

/// `routes_blocks BYTES BLOCKS...`: makes a put of that many bytes to each PE that is reached over
/// the network. It takes so many blocks of the queue, by this PE's number on its node.
pub fn blocks(args: &[String]) -> Outcome {
    let [bytes, expected @ ..] = args else { return Err("routes_blocks BYTES BLOCKS...".into()) };
    let bytes: usize = bytes.parse()?;
    let rig = Rig::new(&RMA)?;
    let (pe, me, n) = (&rig.pe, rig.me(), rig.n_pes());
    let expected: u64 = expected[me % expected.len()].parse()?;
    let (inbox, outbox) = (pe.alloc::<u8>(bytes * n)?, pe.alloc::<u8>(bytes)?);
    pe.write(&outbox, &vec![u8::try_from(me)? + 1; bytes])?;
    let far = |peer: &usize| pe.path(*peer) == Some(Path::Ibgda);
    let posted = |peer: usize| -> oxshmem::Result<u64> {
        let qps = pe.counters()?.qps;
        Ok(qps.iter().filter(|qp| qp.pe == peer).filter_map(|qp| Some(qp.blocks?.0)).sum())
    };
    pe.barrier_all()?;
    for peer in (0..n).filter(far) {
        let before = posted(peer)?;
        pe.put(inbox.view(me * bytes..), &outbox, peer)?;
        pe.quiet()?;
        assert_eq!(posted(peer)? - before, expected, "{bytes} bytes to PE {peer}");
    }
    pe.barrier_all()?;
    let received = pe.read(&inbox)?;
    for peer in (0..n).filter(far) {
        assert!(received[peer * bytes..][..bytes].iter().all(|byte| usize::from(*byte) == peer + 1), "from PE {peer}");
    }
    pe.free(inbox)?;
    pe.free(outbox)?;
    rig.finish()
}

/// `routes_staged PUTS BYTES PLACE`: puts that are too long for the queue, where PEs push. Those by
/// other cards than this PE's own go through rings, which lie in PLACE: `gpu` or `host`. No card
/// reads a payload from afar.
pub fn staged(args: &[String]) -> Outcome {
    let (puts, bytes): (usize, usize) = (args[0].parse()?, args[1].parse()?);
    let rig = Rig::new(&RMA)?;
    let (pe, me, n) = (&rig.pe, rig.me(), rig.n_pes());
    let (inbox, outbox) = (pe.alloc::<u8>(bytes * n * puts)?, pe.alloc::<u8>(bytes)?);
    let byte = |from: usize, put: usize, at: usize| u8::try_from((from * 7 + put * 31 + at) % 251);
    let far: Vec<usize> = (0..n).filter(|peer| pe.path(*peer) == Some(Path::Ibgda)).collect();
    pe.barrier_all()?;
    pe.quiet()?;
    let before = pe.counters()?;
    for (peer, put) in far.iter().flat_map(|peer| (0..puts).map(move |put| (*peer, put))) {
        let payload = (0..bytes).map(|at| byte(me, put, at)).collect::<Result<Vec<_>, _>>()?;
        pe.write(&outbox, &payload)?;
        pe.put(inbox.view((me * puts + put) * bytes..), &outbox, peer)?;
    }
    pe.quiet()?;
    let after = pe.counters()?;
    pe.barrier_all()?;
    let received = pe.read(&inbox)?;
    for (peer, put) in far.iter().flat_map(|peer| (0..puts).map(move |put| (*peer, put))) {
        let from = &received[(peer * puts + put) * bytes..][..bytes];
        for (at, found) in from.iter().enumerate() {
            assert_eq!(*found, byte(peer, put, at)?, "byte {at} of put {put} of PE {peer}");
        }
    }

    // A PE's own card is its first one.
    let mut pushed = 0;
    for (then, now) in before.qps.iter().zip(&after.qps).filter(|(_, now)| far.contains(&now.pe)) {
        let staged = now.staged.1 - then.staged.1;
        let sent = |qp: &oxshmem::QpCount| qp.traffic.message_bytes.unwrap_or_default();
        let expected = if now.card == 0 { 0 } else { sent(now) - sent(then) };
        assert_eq!(staged, expected, "{now:?}");
        pushed += staged;
    }
    assert!(pushed > 0, "nothing was pushed by another card");
    let from_afar = |counters: &oxshmem::Counters| -> u64 {
        let routes = counters.routes.iter().filter(|route| matches!(route.crossing, "root" | "sockets"));
        routes.filter_map(|route| route.traffic.message_bytes).sum()
    };
    assert_eq!(from_afar(&after), from_afar(&before), "{:?}", after.routes);
    let place = if args[2] == "gpu" { "in memory of the GPU of PE" } else { "in memory of the host" };
    let attempts: Vec<String> = pe.hca_attempts().iter().map(ToString::to_string).collect();
    assert!(attempts.iter().any(|line| line.contains("a ring of") && line.contains(place)), "{attempts:#?}");
    pe.free(inbox)?;
    pe.free(outbox)?;
    rig.finish()
}
