//! What a dump says of teams: how many meetings this PE has entered, and which members have come to
//! the newest.

use super::reader::Reader;
use super::text::{Round, State};
use crate::abi;
use crate::bootstrap::list;
use crate::fault;
use crate::team::table;

/// Teams that a dump describes.
const SHOWN: usize = 16;

/// The epoch before the first: device code leaves out 0 and 1, and its first meeting has the one
/// after this.
const NO_EPOCH: u32 = 2;

/// Describes the teams that have met; one for which a PE waits comes first.
pub(super) fn describe(reader: &mut Reader, state: &abi::State) -> Vec<String> {
    // SAFETY: the slab holds the table, and is mapped while the PE has not ended.
    let rows: Vec<abi::Team> = match unsafe { reader.read_many(state.teams, state.max_teams as usize) } {
        Ok(rows) => rows,
        Err(why) => return vec![format!("teams: not read: {why}")],
    };
    let (mut waiting, mut over) = (Vec::new(), Vec::new());
    for row in rows.iter().filter(|row| row.handle != abi::TEAM_INVALID) {
        match round(reader, row) {
            Ok(None) => {}
            Ok(Some(round)) if round.state == State::Over => over.push(round.to_string()),
            Ok(Some(round)) => waiting.push(round.to_string()),
            Err(why) => waiting.push(format!("{}: not read: {why}", table::name(row.handle))),
        }
    }
    let all = waiting.len() + over.len();
    let mut lines: Vec<String> = waiting.into_iter().chain(over).take(SHOWN).collect();
    if all > SHOWN {
        lines.push(format!("and {} more teams", all - SHOWN));
    }
    lines
}

/// Returns how far this PE has come in a team; `None` if its members have never met.
fn round(reader: &mut Reader, row: &abi::Team) -> Result<Option<Round>, String> {
    let members = members(reader, row)?;
    // SAFETY: the workspace of a team that exists is backed by memory of the heap.
    let words: Vec<u64> = unsafe { reader.read_many(row.workspace, 2 * (abi::ROUNDS as usize + abi::ONE_ROUND_PES)) }?;
    let (rounds, headers) = words.split_at(2 * abi::ROUNDS as usize);
    let me = row.my_pe.unsigned_abs() as usize;
    let epoch = if row.one_round != 0 { newest_entered(row.epoch, me, headers) } else { row.epoch };
    let told = Told { epoch, rounds, headers };
    let state =
        if row.one_round != 0 { told.directly(members.len()) } else { told.by_dissemination(me, members.len()) };
    let to_pes = |places: Vec<usize>| places.into_iter().filter_map(|place| members.get(place).copied()).collect();
    let state = match state {
        Standing::Over => State::Over,
        Standing::Waits(places) => State::Waits(to_pes(places)),
        Standing::Awaited(places) => State::Awaited(to_pes(places)),
    };
    if epoch == 0 && state == State::Over {
        return Ok(None);
    }
    let own = headers[(epoch & 1) as usize * abi::ONE_ROUND_PES..].get(me);
    let call = own.filter(|header| row.one_round != 0 && epoch_of(**header) == epoch);
    let place = format!("{} ({})", table::name(row.handle), described(&members));
    let call = call.and_then(|header| fault::call(*header)).unwrap_or("a collective").to_owned();
    Ok(Some(Round { place, round: epoch.saturating_sub(NO_EPOCH).into(), call, state }))
}

/// Returns the epoch of the newest meeting that this PE has entered, where members tell each other
/// directly. The row has it once the meeting is over; where several blocks meet, the PE's own
/// header has it before.
fn newest_entered(of_row: u32, me: usize, headers: &[u64]) -> u32 {
    let own = headers.chunks(abi::ONE_ROUND_PES).filter_map(|slots| slots.get(me));
    own.fold(of_row, |newest, header| if Told::has_entered(*header, newest) { epoch_of(*header) } else { newest })
}

fn members(reader: &mut Reader, row: &abi::Team) -> Result<Vec<u32>, String> {
    let count = usize::try_from(row.n_pes).unwrap_or_default().min(abi::MAX_PES as usize);
    if row.members != 0 {
        // SAFETY: the slab holds the list.
        let pes: Vec<i32> = unsafe { reader.read_many(row.members, count) }?;
        return Ok(pes.into_iter().map(i32::unsigned_abs).collect());
    }
    let pe = |place: usize| row.start.wrapping_add(row.stride.wrapping_mul(i32::try_from(place).unwrap_or(0)));
    Ok((0..count).map(|place| pe(place).unsigned_abs()).collect())
}

fn described(members: &[u32]) -> String {
    let is_run = members.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    match members {
        [only] => format!("PE {only}"),
        [first, _, .., last] if is_run => format!("PEs {first} to {last}"),
        _ => format!("PEs {}", list(members)),
    }
}

fn epoch_of(header: u64) -> u32 {
    (header >> 32) as u32
}

/// What a PE's memory holds of the meetings of a team.
struct Told<'a> {
    /// The epoch of the newest meeting that this PE has entered.
    epoch: u32,
    /// [`abi::ROUNDS`] headers for each parity.
    rounds: &'a [u64],
    /// [`abi::ONE_ROUND_PES`] headers for each parity.
    headers: &'a [u64],
}

/// How a meeting stands, by members' places in the team.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Over,
    Waits(Vec<usize>),
    Awaited(Vec<usize>),
}

impl Told<'_> {
    /// Returns whether a member that wrote this has entered `epoch`.
    fn has_entered(header: u64, epoch: u32) -> bool {
        header != 0 && epoch_of(header).wrapping_sub(epoch).cast_signed() >= 0
    }

    /// Returns the standing of members that tell each other directly: each has written to its own
    /// slot.
    fn directly(&self, members: usize) -> Standing {
        let (even, odd) = self.headers.split_at(abi::ONE_ROUND_PES);
        let entered = |member: usize, epoch| [even, odd].iter().any(|slots| Self::has_entered(slots[member], epoch));
        let all = || 0..members.min(abi::ONE_ROUND_PES);
        let absent: Vec<usize> =
            if self.epoch == 0 { Vec::new() } else { all().filter(|member| !entered(*member, self.epoch)).collect() };
        let next = if self.epoch == 0 { NO_EPOCH + 1 } else { self.epoch.wrapping_add(1) };
        let ahead: Vec<usize> = all().filter(|member| entered(*member, next)).collect();
        match (absent.is_empty(), ahead.is_empty()) {
            (true, true) => Standing::Over,
            (true, false) => Standing::Awaited(ahead),
            (false, _) => Standing::Waits(absent),
        }
    }

    /// Returns the standing of members that tell the one 2^k places after them in round k.
    fn by_dissemination(&self, me: usize, members: usize) -> Standing {
        let (even, odd) = self.rounds.split_at(abi::ROUNDS as usize);
        let entered = |k: usize, epoch| [even, odd].iter().any(|slots| Self::has_entered(slots[k], epoch));
        let before = |k: usize| (me + members - (1 << k)) % members;
        let turns = || (0..abi::ROUNDS as usize).take_while(|k| 1 << k < members);
        // A member passes on what it has heard, so the first that is missing holds up the others.
        if self.epoch != 0
            && let Some(k) = turns().find(|k| !entered(*k, self.epoch))
        {
            return Standing::Waits(vec![before(k)]);
        }
        let next = if self.epoch == 0 { NO_EPOCH + 1 } else { self.epoch.wrapping_add(1) };
        let ahead: Vec<usize> = turns().filter(|k| entered(*k, next)).map(before).collect();
        if ahead.is_empty() { Standing::Over } else { Standing::Awaited(ahead) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: usize = abi::ONE_ROUND_PES;

    fn headers(epochs: &[(usize, u32)]) -> Vec<u64> {
        let mut headers = vec![0; 2 * SLOTS];
        for (member, epoch) in epochs {
            headers[(*epoch & 1) as usize * SLOTS + member] = u64::from(*epoch) << 32 | 2 << 28;
        }
        headers
    }

    fn directly(epoch: u32, epochs: &[(usize, u32)]) -> Standing {
        Told { epoch, rounds: &[], headers: &headers(epochs) }.directly(3)
    }

    #[test]
    fn headers_tell_which_members_have_come() {
        assert_eq!(directly(0, &[]), Standing::Over);
        assert_eq!(directly(0, &[(1, 3)]), Standing::Awaited(vec![1]));
        assert_eq!(directly(3, &[(0, 3), (1, 3)]), Standing::Waits(vec![2]));
        assert_eq!(directly(3, &[(0, 3), (1, 3), (2, 3)]), Standing::Over);
        assert_eq!(directly(4, &[(0, 3), (0, 4), (1, 3), (1, 4), (2, 3)]), Standing::Waits(vec![2]));
        // This PE has the number 2.
        assert_eq!(directly(3, &[(0, 3), (0, 4), (1, 3), (1, 4), (2, 3)]), Standing::Awaited(vec![0, 1]));
        // Epochs wrap, and 0 and 1 are left out.
        assert_eq!(directly(u32::MAX, &[(0, u32::MAX), (1, u32::MAX), (2, u32::MAX)]), Standing::Over);
    }

    #[test]
    fn a_header_tells_of_a_meeting_that_is_not_in_the_row_yet() {
        assert_eq!(newest_entered(0, 1, &headers(&[])), 0);
        assert_eq!(newest_entered(0, 1, &headers(&[(1, 3)])), 3);
        assert_eq!(newest_entered(3, 1, &headers(&[(1, 3), (1, 4), (0, 5)])), 4);
        assert_eq!(newest_entered(7, 1, &headers(&[(1, 6), (1, 7)])), 7);
        assert_eq!(newest_entered(u32::MAX, 1, &headers(&[(1, u32::MAX), (1, 2)])), 2);
    }

    #[test]
    fn dissemination_tells_which_member_has_not_passed_on() {
        let rounds = |epochs: &[(usize, u32)]| {
            let mut rounds = vec![0; 2 * abi::ROUNDS as usize];
            for (k, epoch) in epochs {
                rounds[(*epoch & 1) as usize * abi::ROUNDS as usize + k] = u64::from(*epoch) << 32 | 2 << 28;
            }
            rounds
        };
        let told = |epoch, epochs: &[(usize, u32)]| {
            Told { epoch, rounds: &rounds(epochs), headers: &[] }.by_dissemination(1, 5)
        };
        assert_eq!(told(0, &[]), Standing::Over);
        assert_eq!(told(3, &[]), Standing::Waits(vec![0]));
        assert_eq!(told(3, &[(0, 3)]), Standing::Waits(vec![4]));
        assert_eq!(told(3, &[(0, 3), (1, 3), (2, 3)]), Standing::Over);
        assert_eq!(told(3, &[(0, 3), (1, 3), (2, 3), (0, 4)]), Standing::Awaited(vec![0]));
    }

    #[test]
    fn members_are_named_as_a_run_or_a_list() {
        assert_eq!(described(&[4]), "PE 4");
        assert_eq!(described(&[2, 3, 4]), "PEs 2 to 4");
        assert_eq!(described(&[0, 1]), "PEs 0 and 1");
        assert_eq!(described(&[0, 2]), "PEs 0 and 2");
    }
}
