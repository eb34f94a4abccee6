//! Rows of the table of teams: which are free, how the members of a new team agree on one that is
//! free at all of them, and how much room a row has.

use oxshmem_system::words::count32;

use crate::abi;
use crate::config::Config;

/// Generations are kept in what a handle, a positive `i32`, has beside the row's index.
const LAST_GENERATION: u32 = (1 << (31 - abi::TEAM_INDEX_BITS)) - 1;

/// Returns how many blocks of a collective have room in the workspaces of a job of `n_pes` PEs.
/// These take no more than an eighth of a small heap, with room for a block at least.
pub(super) fn blocks_with_room(n_pes: u64, config: &Config) -> u32 {
    let rows = u64::from(config.max_teams());
    let fits = |blocks: u32| rows * abi::team_workspace_bytes(n_pes, blocks.into()) <= config.heap_max().0 / 8;
    let mut blocks = config.collectives_sms().max(1);
    while blocks > 1 && !fits(blocks) {
        blocks /= 2;
    }
    blocks
}

/// The rows of one PE.
#[derive(Debug)]
pub(crate) struct Rows(Vec<Row>);

#[derive(Debug, Clone, Copy)]
struct Row {
    used: bool,
    /// The generation of the team in it, or of the next one.
    generation: u32,
}

/// A row that members of a new team have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub row: usize,
    pub generation: u32,
}

impl Place {
    /// Returns the handle of the team in it.
    pub fn handle(self) -> i32 {
        (self.generation << abi::TEAM_INDEX_BITS | count32(self.row)).cast_signed()
    }
}

/// What a PE offers: by row, the generation that the next team in it would have, 0 if it is taken.
pub(crate) type Offer = Vec<u32>;

impl Rows {
    /// Creates `count` rows, the first `predefined` of which are taken for good.
    pub fn new(count: usize, predefined: usize) -> Self {
        let row = |index: usize| Row { used: index < predefined, generation: u32::from(index >= predefined) };
        Self((0..count).map(row).collect())
    }

    pub fn offer(&self) -> Offer {
        self.0.iter().map(|row| if row.used { 0 } else { row.generation }).collect()
    }

    pub fn take(&mut self, place: Place) {
        self.0[place.row] = Row { used: true, generation: place.generation };
    }

    /// Frees the row; the next team here has another handle.
    pub fn release(&mut self, row: usize) {
        let Row { used, generation } = &mut self.0[row];
        *used = false;
        *generation = if *generation < LAST_GENERATION { *generation + 1 } else { 1 };
    }
}

/// Returns places for new teams, in this order, each the first that is free at all members. `teams`
/// are indices of `offers`. Every PE that computes this with the same offers gets the same.
///
/// # Errors
/// A team for which no row is free at all members: which one.
pub(crate) fn agree(offers: &[Offer], teams: &[Vec<usize>]) -> Result<Vec<Place>, usize> {
    let mut offers = offers.to_vec();
    let mut places = Vec::with_capacity(teams.len());
    for (team, members) in teams.iter().enumerate() {
        let rows = members.iter().map(|member| offers[*member].len()).min().unwrap_or_default();
        let free = |row: &usize| members.iter().all(|member| offers[*member][*row] != 0);
        let row = (0..rows).find(free).ok_or(team)?;
        let generation = members.iter().map(|member| offers[*member][row]).max().unwrap_or_default();
        for member in members {
            offers[*member][row] = 0;
        }
        places.push(Place { row, generation });
    }
    Ok(places)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_at_all_members_and_its_handle_was_never_used() {
        let (mut a, mut b, c) = (Rows::new(6, 3), Rows::new(6, 3), Rows::new(6, 3));
        a.take(Place { row: 3, generation: 1 });
        b.take(Place { row: 4, generation: 1 });
        b.release(4);
        let offers = [a.offer(), b.offer(), c.offer()];
        assert_eq!(offers, [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 2, 1], [0, 0, 0, 1, 1, 1]]);
        // Teams of one split that have no common member may have the same row.
        let places = agree(&offers, &[vec![0, 1], vec![2], vec![0, 2]]).unwrap();
        let place = |row, generation| Place { row, generation };
        assert_eq!(places, [place(4, 2), place(3, 1), place(5, 1)]);
        assert_eq!(places[0].handle(), 0x204);
        assert_eq!(agree(&offers, &[vec![0, 1], vec![0, 1], vec![2], vec![0]]), Err(3));
    }

    #[test]
    fn generations_begin_again_before_handles_get_negative() {
        let mut rows = Rows::new(256, 3);
        let last = Place { row: 255, generation: LAST_GENERATION };
        assert_eq!(last.handle(), i32::MAX);
        rows.take(last);
        rows.release(255);
        assert_eq!(rows.offer()[255], 1);
    }
}
