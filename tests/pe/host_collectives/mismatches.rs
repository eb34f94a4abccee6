//! Calls of one member that do not fit those of the others, or that no member may make.

use super::*;

/// The member whose call is wrong.
const WRONG: usize = 1;

/// A call, in the right way or in the wrong one.
type Made<'a> = &'a dyn Fn(bool) -> oxshmem::Result<()>;

/// `host_collectives_mismatches`: every member gets an error that names the call and the team, and
/// the team works afterwards. By the algorithms that the settings name, with deadlines that no test
/// waits for.
pub fn mismatches(_: &[String]) -> Outcome {
    let pe = oxshmem::init()?;
    let team = pe.team_world().split_strided(&pe, 0, 1, pe.n_pes())?.unwrap();
    for length in [64, 9000] {
        let stale = pe.alloc::<u32>(4 * length * pe.n_pes())?;
        pe.free_at(stale.address())?;
        let (src, dst) = (pe.alloc(stale.len())?, pe.alloc(stale.len())?);
        assert_eq!(src.address(), stale.address(), "the memory is used again");
        let bench = Mismatch { pe: &pe, team: &team, src: &src, dst: &dst, length };
        bench.differing()?;
        bench.refused_to_one(&stale)?;
        bench.overlapping()?;
        pe.free(src)?;
        pe.free(dst)?;
    }
    team.destroy(&pe)?;
    Ok(pe.finalize()?)
}

struct Mismatch<'a> {
    pe: &'a Pe,
    team: &'a Team,
    src: &'a SymmetricSlice<u32>,
    dst: &'a SymmetricSlice<u32>,
    length: usize,
}

impl Mismatch<'_> {
    fn is_wrong(&self) -> bool {
        self.pe.my_pe() == WRONG
    }

    /// Checks that a fault names the call and the team.
    fn named(&self, result: oxshmem::Result<()>, operation: &str) -> FaultKind {
        let Err(Error::Fault(fault)) = result else { panic!("{operation} of {}: {result:?}", self.length) };
        assert_eq!((fault.operation, fault.team), (operation, Some(self.team.handle())), "{fault}");
        assert!(fault.to_string().contains(&format!("{operation} of team {:#x}: ", self.team.handle())), "{fault}");
        fault.kind
    }

    /// Checks that this member was told of another one's call, and that nothing was written.
    fn told(&self, result: oxshmem::Result<()>, operation: &str) -> Outcome {
        let kind = self.named(result, operation);
        assert!(matches!(kind, FaultKind::Mismatch { .. }), "{operation} of {}: {kind:?}", self.length);
        self.goes_on(operation)
    }

    /// Checks that nothing was written, unless copy engines have done it, and that the team works.
    fn goes_on(&self, operation: &str) -> Outcome {
        let Self { pe, team, src, dst, length } = *self;
        let is_copied = std::env::var("OXSHMEM_COLLECTIVES").is_ok_and(|choice| choice.contains("copy"));
        if !is_copied {
            assert!(pe.read(dst)?.iter().all(|word| *word == 0), "{operation} of {length} has written to dst");
        }
        let members = team.members();
        pe.write(src, &vec![pe.my_pe() as u32; length])?;
        pe.fcollect(team, dst, src.view(..1))?;
        assert_eq!(pe.read(dst.view(..members.len()))?, members.iter().map(|pe| *pe as u32).collect::<Vec<_>>());
        pe.reduce(team, ReduceOp::Sum, dst, src.view(..length))?;
        assert_eq!(pe.read(dst.view(..length))?, vec![members.iter().sum::<usize>() as u32; length]);
        // No member writes for the next call before all have ended this one.
        pe.barrier(team)?;
        pe.write(dst, &vec![0; dst.len()])?;
        Ok(pe.barrier(team)?)
    }

    /// One member's call differs from the others' in one thing.
    fn differing(&self) -> Outcome {
        let Self { pe, team, src, dst, length: n } = *self;
        let (floats_src, floats_dst) =
            (pe.view_at::<f32>(src.address(), src.len()), pe.view_at::<f32>(dst.address(), dst.len()));
        let op = |wrong| if wrong { ReduceOp::Max } else { ReduceOp::Min };
        let size = |wrong| if wrong { n - 1 } else { n };
        let alltoalls = |to: usize, from: usize, n: usize| {
            pe.alltoalls(team, dst.view(..).step_by(to), src.view(..).step_by(from), n)
        };
        let calls: [(&str, Made<'_>); 13] = [
            ("broadcast", &|wrong| pe.broadcast(team, dst, src.view(..n), usize::from(wrong))),
            ("broadcast", &|wrong| pe.broadcast(team, dst, src.view(..size(wrong)), 0)),
            ("fcollect", &|wrong| pe.fcollect(team, dst, src.view(..size(wrong)))),
            ("collect", &|wrong| pe.collect(team, dst.view(usize::from(wrong)..), src.view(..n))),
            ("alltoall", &|wrong| pe.alltoall(team, dst, src, size(wrong))),
            ("alltoalls", &|wrong| alltoalls(1, if wrong { 2 } else { 3 }, n)),
            ("alltoalls", &|wrong| alltoalls(2, 3, size(wrong))),
            ("reduce", &|wrong| pe.reduce(team, op(wrong), dst, src.view(..n))),
            ("reduce", &|wrong| pe.reduce(team, ReduceOp::Sum, dst, src.view(..size(wrong)))),
            ("reduce", &|wrong| {
                if wrong {
                    pe.reduce(team, ReduceOp::Sum, floats_dst.view(..), floats_src.view(..n))
                } else {
                    pe.reduce(team, ReduceOp::Sum, dst, src.view(..n))
                }
            }),
            ("reducescatter", &|wrong| pe.reducescatter(team, op(wrong), dst.view(..n), src)),
            ("reducescatter", &|wrong| pe.reducescatter(team, ReduceOp::Sum, dst.view(..size(wrong)), src)),
            ("reducescatter", &|wrong| {
                if wrong {
                    pe.reducescatter(team, ReduceOp::Sum, floats_dst.view(..n), floats_src.view(..))
                } else {
                    pe.reducescatter(team, ReduceOp::Sum, dst.view(..n), src)
                }
            }),
        ];
        for (operation, call) in calls {
            self.told(call(self.is_wrong()), operation)?;
        }
        // Other calls, whose algorithms need not be the same.
        let reduce = || pe.reduce(team, ReduceOp::Sum, dst, src.view(..n));
        let calls: [(&str, &dyn Fn() -> oxshmem::Result<()>); 4] = [
            ("fcollect", &|| pe.fcollect(team, dst, src.view(..n))),
            ("broadcast", &|| pe.broadcast(team, dst, src.view(..n), 0)),
            ("alltoalls", &|| alltoalls(1, 1, n)),
            ("collect", &|| pe.collect(team, dst, src.view(..n))),
        ];
        for (operation, call) in calls {
            if self.is_wrong() {
                self.told(reduce(), "reduce")?;
            } else {
                self.told(call(), operation)?;
            }
        }
        Ok(())
    }

    /// The host refuses the call of one member, whose slice is too short or was freed.
    fn refused_to_one(&self, stale: &SymmetricSlice<u32>) -> Outcome {
        let Self { pe, team, src, dst, length: n } = *self;
        let whole = src.view(..);
        for (given, is_freed) in [(src.view(..3), false), (stale.view(..), true)] {
            let side = |wrong| if wrong { &given } else { &whole };
            let calls: [(&str, Made<'_>); 7] = [
                ("broadcast", &|wrong| pe.broadcast(team, dst, side(wrong).view(..n), 0)),
                ("fcollect", &|wrong| pe.fcollect(team, dst, side(wrong).view(..n))),
                ("collect", &|wrong| pe.collect(team, dst, side(wrong).view(..n))),
                ("alltoall", &|wrong| pe.alltoall(team, dst, side(wrong), n)),
                ("alltoalls", &|wrong| pe.alltoalls(team, dst.view(..).step_by(1), side(wrong).clone().step_by(2), n)),
                ("reduce", &|wrong| pe.reduce(team, ReduceOp::Sum, dst, side(wrong).view(..n))),
                ("reducescatter", &|wrong| pe.reducescatter(team, ReduceOp::Sum, dst.view(..n), side(wrong))),
            ];
            for (operation, call) in calls {
                let result = call(self.is_wrong());
                if !self.is_wrong() {
                    self.told(result, operation)?;
                    continue;
                }
                let Err(Error::Heap(error)) = &result else { panic!("{operation} of {n}: {result:?}") };
                let expected = match error {
                    HeapError::Freed { .. } => is_freed,
                    HeapError::OutOfRange { .. } | HeapError::TooShort { .. } => !is_freed,
                    _ => false,
                };
                assert!(expected && error.to_string().contains("mismatches.rs:"), "{operation} of {n}: {error}");
                self.goes_on(operation)?;
            }
        }
        Ok(())
    }

    /// Buffers that overlap: on one member, and on all.
    fn overlapping(&self) -> Outcome {
        let Self { pe, team, src, dst, length: n } = *self;
        let to = |overlaps| if overlaps { src.view(1..) } else { dst.view(..) };
        let calls: [(&str, Made<'_>); 7] = [
            ("broadcast", &|overlaps| pe.broadcast(team, to(overlaps), src.view(..n), 0)),
            ("fcollect", &|overlaps| pe.fcollect(team, to(overlaps), src.view(..n))),
            ("alltoall", &|overlaps| pe.alltoall(team, to(overlaps), src, n)),
            ("alltoalls", &|overlaps| pe.alltoalls(team, to(overlaps).step_by(2), src.view(..).step_by(3), n)),
            ("reduce", &|overlaps| pe.reduce(team, ReduceOp::Max, to(overlaps), src.view(..n))),
            ("reducescatter", &|overlaps| pe.reducescatter(team, ReduceOp::Max, to(overlaps).view(..n), src)),
            // Here the members look at it together, when they know all lengths.
            ("collect", &|overlaps| pe.collect(team, to(overlaps), src.view(..n))),
        ];
        for (operation, call) in calls {
            for everywhere in [false, true] {
                let overlaps = everywhere || self.is_wrong();
                let result = call(overlaps);
                if overlaps && (everywhere || operation != "collect") {
                    let kind = self.named(result, operation);
                    assert!(matches!(kind, FaultKind::Overlap { .. }), "{operation} of {n}: {kind:?}");
                    self.goes_on(operation)?;
                } else {
                    self.told(result, operation)?;
                }
            }
        }
        Ok(())
    }
}
