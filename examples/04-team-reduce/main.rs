//! Reduction over a team: the PEs stand in rows of two, and reduce over their row and over their
//! column.
//!
//! A team is made by all PEs of its parent together, and its collectives are called by its members
//! alone.

use oxshmem::{Operations, Pe, ReduceOp, Team};

/// Numbers of each PE.
const NUMBERS: usize = 500;

/// Returns the numbers of a PE.
fn numbers(pe: usize) -> Vec<i64> {
    (0..NUMBERS as i64).map(|i| (pe as i64 + 1) * (i - 200)).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pe = oxshmem::init()?;
    // Rows of two PEs; the last may be shorter. Each PE is in one row and in one column.
    let (row, column) = pe.team_world().split_2d(&pe, pe.n_pes().min(2))?;

    let (input, output) = (pe.alloc::<i64>(NUMBERS)?, pe.alloc::<i64>(NUMBERS)?);
    pe.write(&input, &numbers(pe.my_pe()))?;

    // Element by element: the sum over the row, then the largest over the column. Every member has
    // the result.
    pe.reduce(&row, ReduceOp::Sum, &output, &input)?;
    check(&pe, &row, "sum", &pe.read(&output)?, |a, b| a + b)?;
    pe.reduce(&column, ReduceOp::Max, &output, &input)?;
    check(&pe, &column, "largest", &pe.read(&output)?, i64::max)?;

    println!("PE {}: row {:?} and column {:?} agree", pe.my_pe(), row.members(), column.members());
    // Ending a team is collective too; those that are left end with the PE.
    column.destroy(&pe)?;
    row.destroy(&pe)?;
    Ok(pe.finalize()?)
}

/// Compares a result with that of the members' numbers, which this PE computes itself.
fn check(pe: &Pe, team: &Team, what: &str, result: &[i64], combine: fn(i64, i64) -> i64) -> Result<(), String> {
    let members = team.members().into_iter().map(numbers);
    let expected = members.reduce(|all, one| all.into_iter().zip(one).map(|(a, b)| combine(a, b)).collect());
    if expected.as_deref() == Some(result) {
        return Ok(());
    }
    Err(format!("PE {}: the {what} over {:?} is wrong", pe.my_pe(), team.members()))
}
