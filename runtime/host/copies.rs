//! Collectives whose data copy engines move, so that none of it passes through a multiprocessor.
//! Small kernels let the members meet before them and tell each other when they are through,
//! because a wait of a stream has no deadline.

use super::transfer::{Put, THREADS};
use crate::Result;
use crate::abi::{Algorithm, Call, KnownTeam};
use crate::device::{LaunchConfig, Stream};
use crate::pe::Pe;
use crate::team::Team;

/// The arguments of a collective's kernel: call, team, dst, src, n, then the root or both strides,
/// the element's bytes or type, and the operator.
pub(super) type Args = (u32, i32, u64, u64, u64, i64, i64, u32, u32);

/// Bytes of a broadcast that several members pass on while the next ones come.
const PASSED_ON: u64 = 16 << 20;
/// The most such parts of a broadcast: after each the members wait for each other.
const MOST_PARTS: u64 = 8;
/// Shares begin at multiples of this many bytes.
const ALIGNMENT: u64 = 128;

/// What a member copies, from its own memory to a member's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    member: usize,
    /// Where, as an address in this PE's heap.
    to: u64,
    from: u64,
    bytes: u64,
}

/// A member's view of a call.
#[derive(Debug, Clone, Copy)]
struct View {
    call: u32,
    me: usize,
    members: usize,
    dst: u64,
    src: u64,
    /// The length of a broadcast, or of what one member has for each.
    bytes: u64,
    root: usize,
}

impl View {
    /// Returns whether device code takes the arguments: what it refuses is not copied.
    fn is_accepted(self) -> bool {
        let all = self.bytes.saturating_mul(self.members as u64);
        let (to, from) = match self.call {
            call if call == Call::Broadcast as u32 => (self.bytes, self.bytes),
            call if call == Call::Fcollect as u32 => (all, self.bytes),
            _ => (all, all),
        };
        let is_same = self.call == Call::Broadcast as u32 && self.dst == self.src;
        let is_apart = self.dst.saturating_add(to) <= self.src || self.src.saturating_add(from) <= self.dst;
        self.root < self.members && (is_same || is_apart)
    }

    /// Returns the other members, those behind this one first, so that no two members send to one
    /// at a time.
    fn others(self) -> impl Iterator<Item = usize> {
        (1..self.members).map(move |distance| (self.me + distance) % self.members)
    }

    /// Returns what this member copies, step by step; after each step the members wait for each
    /// other. All have the same number of steps.
    fn steps(self) -> Vec<Vec<Part>> {
        if self.call == Call::Broadcast as u32 {
            return self.broadcast();
        }
        let step = if self.call == Call::Alltoall as u32 { self.bytes } else { 0 };
        let to = self.dst + self.me as u64 * self.bytes;
        let part = |member| Part { member, to, from: self.src + member as u64 * step, bytes: self.bytes };
        vec![self.others().chain([self.me]).map(part).collect()]
    }

    /// The root copies all to one other member. To several it copies a share each, which these pass
    /// on in the next step, while the root copies what follows.
    fn broadcast(self) -> Vec<Vec<Part>> {
        let is_root = self.me == self.root;
        let own = Part { member: self.me, to: self.dst, from: self.src, bytes: self.bytes };
        let others = self.members.saturating_sub(1) as u64;
        let parts = if others < 2 { 1 } else { (self.bytes / PASSED_ON).clamp(1, MOST_PARTS) };
        let each = self.bytes.div_ceil((parts * others).max(1)).next_multiple_of(ALIGNMENT);
        // Returns the copy to `member` of what member `of` gets of a part, out of what begins at
        // `base`.
        let sent = |member: usize, part: u64, base: u64, of: usize| {
            let number = ((of + self.members - self.root - 1) % self.members) as u64;
            let begin = (each * (part * others + number)).min(self.bytes);
            Part { member, to: self.dst + begin, from: base + begin, bytes: each.min(self.bytes - begin) }
        };
        let steps = if others < 2 { 1 } else { parts + 1 };
        let step = |at: u64| {
            let mut copied: Vec<Part> = Vec::new();
            if is_root && at < parts {
                copied.extend(self.others().map(|to| sent(to, at, self.src, to)));
                if at == 0 && self.dst != self.src {
                    copied.push(own);
                }
            } else if !is_root && at > 0 {
                let targets = self.others().filter(|member| *member != self.root);
                copied.extend(targets.map(|to| sent(to, at - 1, self.dst, self.me)));
            }
            copied
        };
        (0..steps).map(step).collect()
    }
}

/// Queues a broadcast, an fcollect or an alltoall of near members. With `refused` device code is
/// told that this member's call is wrong, and nothing is copied.
pub(super) fn queue_copies(
    own: &Pe,
    (team, known): (&Team, KnownTeam),
    stream: &Stream,
    kernel: &str,
    args: Args,
    refused: bool,
) -> Result<()> {
    let (call, _, dst, src, bytes, root, second, kind, op) = args;
    let config = LaunchConfig::linear(1, THREADS);
    let opening = (call, known, dst, src, bytes, root, second, kind, op, Algorithm::CopyEngines as u32);
    // SAFETY: the kernel checks every address and number itself, and accesses no data.
    unsafe { own.queue_collective(stream, kernel, config, opening) }?;
    let pes = team.members();
    let me = usize::try_from(known.my_pe).unwrap_or(usize::MAX);
    let root = usize::try_from(root).unwrap_or(usize::MAX);
    let view = View { call, me, members: pes.len(), dst, src, bytes, root };
    // The meeting of a call that is wrong fails on all members, and no step follows it.
    let steps = if refused || !view.is_accepted() { Vec::new() } else { view.steps() };
    let put =
        |part: Part| Put { is_copied_in_graphs: true, ..Put::new((part.to, part.from), part.bytes, pes[part.member]) };
    for (step, number) in steps.into_iter().zip(1_u32..) {
        let puts = step.into_iter().filter(|part| part.bytes != 0).map(put);
        let (here, there): (Vec<Put>, Vec<Put>) = puts.partition(|put| put.pe == own.my_pe());
        // A copy within the GPU takes nothing of its links, and costs no time beside those over
        // them.
        let is_queued = match here[..] {
            // SAFETY: both sides of each were checked: they are memory of the heap, and of the same
            // allocation at the other member. What is read and what is written lie apart.
            [here] if !there.is_empty() => unsafe { own.queue_puts_beside(here, &there, stream) }?,
            _ => false,
        };
        let left = if is_queued { Vec::new() } else { [there, here].concat() };
        for put in left {
            // SAFETY: as above.
            unsafe { own.queue_put(put, stream) }?;
        }
        // SAFETY: the kernel takes what the host knows of a team, and checks that it still exists.
        unsafe { own.queue_collective(stream, "oxshmem_host_copied", config, (call, known, number)) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out what all members copy, and compares what each has then with what the call
    /// promises.
    fn carry_out(call: Call, members: usize, bytes: u64, root: usize) {
        const DST: u64 = 1 << 20;
        let (part, whole) = (usize::try_from(bytes).unwrap_or(0), usize::try_from(bytes).unwrap_or(0) * members);
        let byte = |member: usize, at: usize| (member * 31 + at % 29 + 1) as u8;
        let src: Vec<Vec<u8>> = (0..members).map(|member| (0..whole).map(|at| byte(member, at)).collect()).collect();
        let mut dst = vec![vec![0; whole]; members];
        let view = |me| View { call: call as u32, me, members, dst: DST, src: 0, bytes, root };
        let steps: Vec<_> = (0..members).map(|me| view(me).steps()).collect();
        assert!(steps.iter().all(|own| own.len() == steps[0].len()), "all members meet as often");
        for step in 0..steps[0].len() {
            // What one step copies may not depend on what another member copies in it.
            let before = dst.clone();
            for (me, own) in steps.iter().enumerate() {
                for copy in &own[step] {
                    let length = usize::try_from(copy.bytes).unwrap_or(0);
                    let to = usize::try_from(copy.to - DST).unwrap_or(0);
                    let from = if copy.from >= DST { &before[me][..] } else { &src[me][..] };
                    let at = usize::try_from(copy.from % DST).unwrap_or(0);
                    dst[copy.member][to..to + length].copy_from_slice(&from[at..at + length]);
                }
            }
        }
        for (me, dst) in dst.iter_mut().enumerate() {
            let wanted: Vec<u8> = match call {
                Call::Broadcast => src[root][..part].to_vec(),
                Call::Fcollect => src.iter().flat_map(|src| src[..part].to_vec()).collect(),
                _ => src.iter().flat_map(|src| src[me * part..(me + 1) * part].to_vec()).collect(),
            };
            dst.truncate(wanted.len());
            assert_eq!(*dst, wanted, "{call:?} of {bytes} bytes by {members} members: member {me}");
        }
    }

    #[test]
    fn every_member_gets_what_the_call_promises() {
        for members in 1..6 {
            for bytes in [0, 1, 100, 1000, 4096] {
                carry_out(Call::Fcollect, members, bytes, 0);
                carry_out(Call::Alltoall, members, bytes, 0);
                for root in 0..members {
                    carry_out(Call::Broadcast, members, bytes, root);
                }
            }
        }
    }

    #[test]
    fn long_broadcasts_are_passed_on_in_parts() {
        let view = |me, members| View {
            call: Call::Broadcast as u32,
            me,
            members,
            dst: 1 << 40,
            src: 0,
            bytes: 64 << 20,
            root: 1,
        };
        assert_eq!(view(0, 2).steps().len(), 1);
        for me in 0..4 {
            let steps = view(me, 4).steps();
            assert_eq!(steps.len(), 5);
            let sent: u64 = steps.iter().flatten().filter(|part| part.member != me).map(|part| part.bytes).sum();
            // The root sends everything once, and each other member two thirds of that in all.
            assert!(if me == 1 { sent == 64 << 20 } else { sent.abs_diff((64 << 20) / 3 * 2) < 4096 }, "{me}: {sent}");
        }
    }

    #[test]
    fn what_device_code_refuses_is_not_copied() {
        let view = View { call: Call::Fcollect as u32, me: 0, members: 3, dst: 4096, src: 8192, bytes: 1024, root: 0 };
        assert!(view.is_accepted());
        assert!(!View { src: 4096 + 3071, ..view }.is_accepted());
        assert!(!View { root: 3, ..view }.is_accepted());
        assert!(!View { src: 4096, ..view }.is_accepted());
        assert!(View { call: Call::Broadcast as u32, src: 4096, ..view }.is_accepted());
        assert!(!View { bytes: u64::MAX, ..view }.is_accepted());
    }
}
