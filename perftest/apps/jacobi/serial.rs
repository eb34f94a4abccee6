//! The solution by one thread, to compare with. Each value is computed with the additions of the
//! kernels in their order, so fields are equal bit by bit; the change is summed up in another
//! order, so it is equal to rounding.

use crate::mesh::Mesh;

/// What a run ends with.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The field, `nx` values a row.
    pub field: Vec<f32>,
    /// The sum of squared changes of the last iteration.
    pub change: f64,
}

/// Returns the field before the first iteration.
fn start(mesh: Mesh) -> Vec<f32> {
    let nx = mesh.nx as usize;
    let mut field = vec![0.0; nx * mesh.ny as usize];
    for (row, side) in field.chunks_exact_mut(nx).zip(mesh.sides()) {
        row[0] = side;
        row[nx - 1] = side;
    }
    field
}

/// Returns the field after `iterations`, each with the sum of squared changes.
pub fn solve(mesh: Mesh, iterations: u64) -> Solution {
    let nx = mesh.nx as usize;
    let mut now = start(mesh);
    let mut next = now.clone();
    let mut change = 0.0;
    for iteration in 0..iterations {
        change = 0.0;
        let last = iteration + 1 == iterations;
        for row in 1..mesh.ny as usize - 1 {
            let at = |row: usize| &now[row * nx..(row + 1) * nx];
            let (up, mid, down) = (at(row - 1), at(row), at(row + 1));
            let out = &mut next[row * nx..(row + 1) * nx];
            let inner = up[1..nx - 1].iter().zip(&down[1..nx - 1]).zip(mid.windows(3)).zip(&mut out[1..nx - 1]);
            for (((up, down), around), out) in inner {
                *out = 0.25 * ((up + down) + (around[0] + around[2]));
            }
            if last {
                let squares = out.iter().zip(mid).map(|(new, old)| f64::from(new - old).powi(2));
                change += squares.sum::<f64>();
            }
        }
        std::mem::swap(&mut now, &mut next);
    }
    Solution { field: now, change }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_points_stay_and_the_others_average() {
        let mesh = Mesh { nx: 4, ny: 4 };
        let sides = mesh.sides();
        let one = solve(mesh, 1);
        for (row, side) in one.field.chunks_exact(4).zip(&sides) {
            assert_eq!([row[0], row[3]], [*side; 2]);
        }
        // Only the column beside a side has a neighbour that is not 0.
        assert_eq!(one.field[5], 0.25 * sides[1]);
        let squares = (1..3).map(|row| 2.0 * f64::from(0.25 * sides[row]).powi(2)).sum::<f64>();
        assert!((one.change - squares).abs() < 1e-12);
        assert_eq!(solve(mesh, 0).field, start(mesh));
    }

    #[test]
    fn it_converges_to_a_harmonic_function() {
        let mesh = Mesh { nx: 17, ny: 17 };
        let (early, late) = (solve(mesh, 10), solve(mesh, 2000));
        assert!(late.change < 1e-10 && early.change > 1e-4);
        let at = |row: usize, column: usize| late.field[row * 17 + column];
        for row in 1..16 {
            for column in 1..16 {
                let mean =
                    (at(row - 1, column) + at(row + 1, column) + at(row, column - 1) + at(row, column + 1)) / 4.0;
                assert!((at(row, column) - mean).abs() < 1e-4);
            }
        }
    }
}
