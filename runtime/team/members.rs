//! Sets of PEs, and how a team is split into them.

use std::fmt;
use std::sync::Arc;

use super::TeamError;

/// The PEs of a team, in the order of their numbers in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Members {
    /// Member i is PE `start + i * stride`.
    Strided { start: usize, stride: usize, count: usize },
    /// Member i is PE `list[i]`.
    List(Arc<[usize]>),
}

impl Members {
    /// Returns the set of these PEs, of which there is at least one; by start and stride if they
    /// are evenly spaced.
    pub fn new(pes: &[usize]) -> Self {
        let start = pes.first().copied().unwrap_or_default();
        let stride = pes.get(1).and_then(|second| second.checked_sub(start)).filter(|stride| *stride > 0);
        let even = |stride: usize| pes.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == Some(stride));
        match (pes.len(), stride) {
            (0 | 1, _) => Self::Strided { start, stride: 1, count: pes.len() },
            (count, Some(stride)) if even(stride) => Self::Strided { start, stride, count },
            _ => Self::List(pes.into()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Strided { count, .. } => *count,
            Self::List(pes) => pes.len(),
        }
    }

    /// Returns the PE that is member `index`.
    pub fn pe(&self, index: usize) -> Option<usize> {
        match self {
            Self::Strided { start, stride, count } => (index < *count).then(|| start + index * stride),
            Self::List(pes) => pes.get(index).copied(),
        }
    }

    /// Returns which member PE `pe` is.
    pub fn index_of(&self, pe: usize) -> Option<usize> {
        match self {
            Self::Strided { start, stride, count } => {
                let distance = pe.checked_sub(*start)?;
                (distance.is_multiple_of(*stride) && distance / stride < *count).then_some(distance / stride)
            }
            Self::List(pes) => pes.iter().position(|member| *member == pe),
        }
    }

    pub fn to_vec(&self) -> Vec<usize> {
        (0..self.len()).filter_map(|index| self.pe(index)).collect()
    }
}

/// How a team is split; numbers are those of the team that is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    Strided { start: usize, stride: usize, size: usize },
    TwoD { xrange: usize },
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strided { start, stride, size } => {
                write!(f, "split_strided(start {start}, stride {stride}, size {size})")
            }
            Self::TwoD { xrange } => write!(f, "split_2d(xrange {xrange})"),
        }
    }
}

impl Split {
    /// Returns the new teams that a team of `n` is split into, by numbers in it: for two dimensions
    /// first those along x, then those along y.
    pub fn apply(self, n: usize) -> Result<Vec<Vec<usize>>, TeamError> {
        let refuse = |reason: String| Err(TeamError::BadSplit { call: self.to_string(), n, reason });
        match self {
            Self::Strided { size: 0, .. } => refuse("a team has at least one member".into()),
            Self::Strided { stride: 0, size: 2.., .. } => {
                refuse("members would be the same PE; a stride is at least 1".into())
            }
            Self::Strided { start, stride, size } => {
                let last = (size - 1).checked_mul(stride).and_then(|distance| distance.checked_add(start));
                match last.filter(|last| *last < n) {
                    Some(last) => Ok(vec![(start..=last).step_by(stride.max(1)).take(size).collect()]),
                    None => {
                        let last = last.map_or_else(|| "beyond all numbers".into(), |last| format!("PE {last}"));
                        refuse(format!("its last member would be {last}"))
                    }
                }
            }
            Self::TwoD { xrange: 0 } => refuse("a row has at least one PE".into()),
            Self::TwoD { xrange } => {
                let xrange = xrange.min(n);
                let along_x = (0..n).step_by(xrange).map(|first| (first..n.min(first + xrange)).collect());
                let along_y = (0..xrange).map(|first| (first..n).step_by(xrange).collect());
                Ok(along_x.chain(along_y).collect())
            }
        }
    }
}

/// Returns the parts of a team whose members call one split each, `calls` by number in the team. A
/// member that is in the part that it names is in that part; another one is in none.
///
/// # Errors
/// A member that names its part, and one that is in that part and calls something else.
pub(crate) fn own_parts(calls: &[Split]) -> Result<Vec<Vec<usize>>, (usize, usize)> {
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut placed = vec![false; calls.len()];
    for (number, call) in calls.iter().enumerate() {
        if placed[number] {
            continue;
        }
        // A call that fits no team is its caller's error alone.
        let named = call.apply(calls.len()).unwrap_or_default();
        let Some(part) = named.into_iter().find(|part| part.contains(&number)) else { continue };
        if let Some(other) = part.iter().find(|member| calls[**member] != *call) {
            return Err((number, *other));
        }
        part.iter().for_each(|member| placed[*member] = true);
        parts.push(part);
    }
    Ok(parts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn even_spacing_needs_no_list() {
        assert_eq!(Members::new(&[3]), Members::Strided { start: 3, stride: 1, count: 1 });
        assert_eq!(Members::new(&[2, 4, 6]), Members::Strided { start: 2, stride: 2, count: 3 });
        for pes in [&[2, 4, 5][..], &[4, 2], &[0, 0]] {
            assert_eq!(Members::new(pes), Members::List(pes.into()));
        }
    }

    #[test]
    fn a_split_that_does_not_fit_says_where() {
        let refused = |split: Split| split.apply(8).unwrap_err().to_string();
        let strided = |start, stride, size| refused(Split::Strided { start, stride, size });
        assert_eq!(
            strided(2, 3, 3),
            "split_strided(start 2, stride 3, size 3) of a team of 8 PEs: its last member would be PE 8"
        );
        assert!(strided(0, 1, 0).ends_with("at least one member"));
        assert!(strided(0, 0, 2).ends_with("a stride is at least 1"));
        assert!(strided(8, 0, 1).ends_with("would be PE 8"));
        assert!(strided(1, usize::MAX, 2).ends_with("beyond all numbers"));
        assert!(refused(Split::TwoD { xrange: 0 }).ends_with("at least one PE"));
        assert_eq!(Split::Strided { start: 7, stride: 0, size: 1 }.apply(8).unwrap(), [[7]]);
    }

    #[test]
    fn two_dimensions_may_have_a_short_last_row() {
        let teams = Split::TwoD { xrange: 3 }.apply(8).unwrap();
        let (x, y) = ([vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]], [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5]]);
        assert_eq!(teams, [x, y].concat());
        assert_eq!(Split::TwoD { xrange: 99 }.apply(2).unwrap(), [vec![0, 1], vec![0], vec![1]]);
    }

    #[test]
    fn members_that_name_their_own_parts_have_to_agree() {
        let strided = |start, stride, size| Split::Strided { start, stride, size };
        let by_node = |number: usize| strided(number / 3 * 3, 1, 3);
        assert_eq!(own_parts(&[0, 1, 2, 3, 4, 5].map(by_node)).unwrap(), [[0, 1, 2], [3, 4, 5]]);
        let across = |number: usize| strided(number % 2, 2, 2);
        assert_eq!(own_parts(&[0, 1, 2, 3].map(across)).unwrap(), [[0, 2], [1, 3]]);
        // All name one part, and some are not in it.
        assert_eq!(own_parts(&[strided(1, 1, 2); 4]).unwrap(), [[1, 2]]);
        // Each names the other alone, one names an empty team, and one a team that does not fit.
        let calls = [strided(1, 1, 1), strided(0, 1, 1), strided(0, 1, 0), strided(3, 1, 2)];
        assert_eq!(own_parts(&calls).unwrap(), [[0; 0]; 0]);

        let (first, all) = (strided(0, 1, 2), strided(0, 1, 3));
        assert_eq!(own_parts(&[first, first, all]), Err((2, 0)));
        assert_eq!(own_parts(&[first, strided(1, 1, 2), strided(1, 1, 2)]), Err((0, 1)));
        assert_eq!(own_parts(&[first, strided(9, 1, 1)]), Err((0, 1)));
    }

    proptest! {
        #[test]
        fn members_are_found_by_their_pe(pes in prop::collection::btree_set(0usize..64, 1..20).prop_map(|set| set.into_iter().collect::<Vec<_>>()).prop_shuffle()) {
            let members = Members::new(&pes);
            prop_assert_eq!(members.to_vec(), pes.clone());
            for pe in 0..64 {
                prop_assert_eq!(members.index_of(pe), pes.iter().position(|member| *member == pe));
            }
            prop_assert_eq!(members.pe(pes.len()), None);
        }

        #[test]
        fn each_pe_is_in_one_team_of_each_dimension(n in 1usize..40, xrange in 1usize..50) {
            let teams = Split::TwoD { xrange }.apply(n).unwrap();
            let rows = n.div_ceil(xrange.min(n));
            for pe in 0..n {
                for dimension in [&teams[..rows], &teams[rows..]] {
                    prop_assert_eq!(dimension.iter().filter(|team| team.contains(&pe)).count(), 1);
                }
            }
        }
    }
}
