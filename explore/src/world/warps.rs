//! Lanes of a warp: where they converge, and the operations that they do together.

use std::ops::Range;

use oxshmem_system::mixing::scramble;
use rustc_hash::FxHashMap;

use super::{Status, World};

impl World {
    pub(super) fn warp_of(&self, index: usize) -> Range<usize> {
        let first = index - self.threads[index].device.lane as usize;
        first..first + self.program.lanes as usize
    }

    /// Releases the lanes of a warp if they have all come to the same place, or alone if they never
    /// will.
    pub(super) fn check_converging(&mut self, index: usize) {
        if self.threads[index].proxy.is_some() {
            return;
        }
        let warp = self.warp_of(index);
        let mut places = warp.clone().map(|lane| match self.threads[lane].status {
            Status::Converging { site, key } => Some((site, key)),
            _ => None,
        });
        let first = places.next().flatten();
        if first.is_some() && places.all(|place| place == first) {
            let mask = (1u64 << warp.len()) - 1;
            self.say(|world| format!("the warp of {} converges", world.who(index)));
            for lane in warp {
                self.threads[lane].status = Status::Ready;
                self.threads[lane].result = mask;
            }
            return;
        }
        // A lane in an operation of the warp that is not complete does not come here before others
        // do.
        let all_wait = warp.clone().all(|lane| {
            matches!(self.threads[lane].status, Status::Converging { .. } | Status::InWarp { .. } | Status::Done)
        });
        let waiting =
            warp.clone().filter(|&lane| matches!(self.threads[lane].status, Status::Converging { .. })).count();
        if all_wait || (self.program.parts != 0 && waiting >= 2 && self.policy.chance(2)) {
            self.release_waiting(warp);
        }
    }

    /// Releases the waiting lanes of a warp: each alone, or, where parts of a warp may work
    /// together, with those at the same place.
    pub(super) fn release_waiting(&mut self, warp: Range<usize>) {
        let first = warp.start;
        for lane in warp.clone() {
            let Status::Converging { site, key } = self.threads[lane].status else { continue };
            let same = |world: &Self, other: usize| world.threads[other].status == Status::Converging { site, key };
            let group: Vec<usize> = if self.program.parts != 0 {
                warp.clone().filter(|&other| same(self, other)).collect()
            } else {
                vec![lane]
            };
            let mask = group.iter().fold(0, |mask, other| mask | 1 << (other - first));
            for other in group {
                self.threads[other].status = Status::Ready;
                self.threads[other].result = mask;
            }
        }
    }

    /// Carries out the operation that a warp's lanes wait in, if all that take part are there.
    pub(super) fn check_warp(&mut self, index: usize) {
        if self.threads[index].proxy.is_some() {
            return;
        }
        let warp = self.warp_of(index);
        let first = warp.start;
        for leader in warp.clone() {
            let Status::InWarp { kind, mask, .. } = self.threads[leader].status else { continue };
            let lanes: Vec<usize> = warp
                .clone()
                .filter(|&lane| mask >> (lane - first) & 1 != 0 && self.threads[lane].status != Status::Done)
                .collect();
            let values: Vec<(u64, u32)> = lanes
                .iter()
                .filter_map(|&lane| match self.threads[lane].status {
                    Status::InWarp { kind: theirs, mask: named, value, source } if theirs == kind && named == mask => {
                        Some((value, source))
                    }
                    _ => None,
                })
                .collect();
            if values.len() != lanes.len() {
                continue;
            }
            self.carry_out(kind, first, &lanes, &values);
        }
    }

    pub(super) fn carry_out(&mut self, kind: u32, first: usize, lanes: &[usize], values: &[(u64, u32)]) {
        let bit = |lane: usize| 1u64 << (lane - first);
        let ballot =
            lanes.iter().zip(values).filter(|(_, (value, _))| *value != 0).fold(0, |all, (&lane, _)| all | bit(lane));
        for (position, &lane) in lanes.iter().enumerate() {
            let (value, source) = values[position];
            let result = match kind {
                1 => ballot,
                2 => lanes.iter().position(|&other| other == first + source as usize).map_or(value, |at| values[at].0),
                3 => lanes
                    .iter()
                    .zip(values)
                    .filter(|(_, (theirs, _))| *theirs == value)
                    .fold(0, |all, (&l, _)| all | bit(l)),
                4 => {
                    let mut starts = 0;
                    for (at, &other) in lanes.iter().enumerate() {
                        if at == 0 || values[at].0 != values[at - 1].0.wrapping_add(source.into()) {
                            starts |= bit(other);
                        }
                    }
                    starts
                }
                5 => u64::from(ballot != 0),
                _ => 0,
            };
            self.threads[lane].result = result;
            self.threads[lane].status = Status::Ready;
            self.threads[lane].hash = scramble(self.threads[lane].hash ^ result);
        }
        if kind == 0 || kind == 5 {
            // A barrier: what the participants have stored is visible to all of them.
            let all: u64 = lanes.iter().map(|&lane| 1u64 << lane).sum();
            for entry in &mut self.entries {
                if entry.seen_by & all != 0 {
                    entry.seen_by |= all;
                }
            }
            self.share_what_was_seen(lanes);
        }
    }

    /// Lets each of the lanes that meet at a barrier load nothing older than any of them may load.
    fn share_what_was_seen(&mut self, lanes: &[usize]) {
        let floor = lanes.iter().map(|&lane| self.threads[lane].floor).max().unwrap_or(0);
        let mut newest: FxHashMap<u32, u64> = FxHashMap::default();
        for (&(thread, word), &seen) in &self.last_seen {
            if lanes.contains(&usize::from(thread)) {
                let known = newest.entry(word).or_default();
                *known = seen.max(*known);
            }
        }
        for &lane in lanes {
            self.threads[lane].floor = floor;
            self.last_seen.extend(newest.iter().map(|(&word, &seen)| ((lane as u8, word), seen)));
        }
    }
}
