//! The fourteen ways in which a card, its kernel and PCIe are stricter than a program might think,
//! each alone and all together, with one card and with two (docs/notes/strictness.md).

use std::collections::BTreeSet;

use oxshmem_tests::{Device, Job, Transport, transcript};

use super::{card_reports, counts, job};

/// What the stand-in is told where a row says nothing else: nothing that it can leave.
const LENIENT: &str = "device:atomics=2,device:late=0,cap:qp_ts_format=0,cap:sq_ts_format=0";

/// Puts and gets of all kinds, atomics, signals after puts; a case and its argument.
const CASES: [(&str, &str); 3] = [("rma", "2"), ("atomic_values", "20"), ("signals", "short")];

/// How the jobs of a row end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Pass,
    /// Set-up fails, with this in the error.
    Fail(&'static str),
    /// Values are wrong, or are waited for in vain: the runtime refuses such a platform.
    GoWrong,
}

/// Jobs of which one at least goes wrong.
const TRIES: u32 = 10;

/// Behaviours that are tried by the same job.
#[derive(Debug)]
struct Row {
    /// Their numbers in docs/notes/strictness.md.
    numbers: &'static [u32],
    /// What the stand-in is told.
    lies: &'static str,
    /// Variables of the job.
    variables: &'static [(&'static str, &'static str)],
    end: End,
}

/// The stand-in writes late, and in another order, where its own thread writes: on the `cpu`
/// device.
const OF_THE_CPU: [u32; 2] = [11, 12];

/// Set-up gets write-combining pages alone, for queue pairs that a thread of the CPU rings.
const WRITE_COMBINING: &str = "errno:mlx5dv_devx_alloc_uar.dedicated=95,errno:mlx5dv_devx_alloc_uar.nc=95";

const ROWS: [Row; 10] = [
    Row { numbers: &[1], lies: "device:atomics=1", variables: &[], end: End::Pass },
    Row { numbers: &[2], lies: "", variables: &[("OXSHMEM_IB_STRONG_ORDERING", "1")], end: End::Pass },
    // The stand-in cannot leave these.
    Row { numbers: &[3, 5, 8, 9, 14], lies: "", variables: &[], end: End::Pass },
    Row { numbers: &[4], lies: WRITE_COMBINING, variables: &[("OXSHMEM_IBGDA_DOORBELL", "cpu")], end: End::Pass },
    Row { numbers: &[6], lies: "errno:mlx5dv_devx_alloc_uar.dedicated=95", variables: &[], end: End::Pass },
    Row { numbers: &[7], lies: "cap:qp_ts_format=1,cap:sq_ts_format=1", variables: &[], end: End::Pass },
    Row { numbers: &[10], lies: "device:old-kernel=1,status:ALLOC_Q_COUNTER=0x0f", variables: &[], end: End::Pass },
    Row { numbers: &[11], lies: "device:late=1", variables: &[], end: End::Pass },
    Row { numbers: &[12], lies: "device:unordered=1", variables: &[("OXSHMEM_TIMEOUT", "1s")], end: End::GoWrong },
    Row {
        numbers: &[13],
        lies: "errno:ibv_create_ah=110",
        variables: &[("OXSHMEM_BOOTSTRAP_TIMEOUT", "10s")],
        end: End::Fail("does not reach 2001:db8::"),
    },
];

/// Returns a job of two PEs with that many cards each; what is said first counts.
fn on_cards(device: Device, case: (&str, &str), cards: u32, variables: &[(&str, &str)]) -> Job {
    let (case, argument) = case;
    let all: Vec<String> = (0..cards).map(|card| format!("mlx5_{card}")).collect();
    let all = all.join("+");
    let job = job(case, Transport::Ibgda, 2).on(device).args(&[argument]).env("OXSHMEM_HCA", "mlx5");
    let job = job.env("OXSHMEM_HCA_DEVICES", format!("0={all},1={all}"));
    variables.iter().fold(job, |job, (name, value)| job.env(name, *value))
}

fn each_alone(device: Device, cards: u32) {
    for Row { numbers, lies, variables, end } in &ROWS {
        if device == Device::Cuda && numbers.iter().any(|number| OF_THE_CPU.contains(number)) {
            println!("skipped: {numbers:?}: on this device the GPU moves the stand-in's data, in order");
            continue;
        }
        let lies = [*lies, &format!("device:count={cards}"), LENIENT].join(",");
        // One case shows what is wrong.
        let cases = if *end == End::Pass { &CASES[..] } else { &CASES[2..] };
        for case in cases {
            let what = format!("{numbers:?}, {cards} cards, {case:?}, {}", device.name());
            let job = on_cards(device, *case, cards, variables);
            match end {
                End::Pass => {
                    let reports = card_reports(&format!("strictness-{cards}-{}", device.name()), job, &lies);
                    // Nothing is ordered strongly where that is not requested.
                    let ordered = numbers.contains(&2);
                    let strong = counts(&reports, "strong");
                    assert_eq!(strong.len() as u32, 2 * cards, "{what}: {reports}");
                    assert_eq!(strong.iter().any(|count| *count > 0), ordered, "{what}: {reports}");
                    assert!(reports.lines().all(|line| line.contains(" live=0 ")), "{what}: {reports}");
                }
                End::Fail(text) => {
                    let outcome = job.env("RDMA_STAND_IN", &lies).run();
                    let all = transcript(&outcome);
                    assert!(!outcome.is_success() && all.contains(text), "{what}: no `{text}` in\n{all}");
                }
                End::GoWrong => {
                    // Which of a card's writes come first is chance.
                    let goes_wrong =
                        || !on_cards(device, *case, cards, variables).env("RDMA_STAND_IN", &lies).run().is_success();
                    assert!((0..TRIES).any(|_| goes_wrong()), "{what}: nothing went wrong in {TRIES} jobs");
                }
            }
        }
    }
}

fn all_that_programs_can_live_with_together(device: Device) {
    let rows = || ROWS.iter().filter(|row| row.end == End::Pass);
    let lies: Vec<&str> = rows().map(|row| row.lies).filter(|lies| !lies.is_empty()).collect();
    let variables: Vec<_> = rows().flat_map(|row| row.variables).copied().collect();
    for cards in [1, 2] {
        let lies = [&lies.join(","), &format!("device:count={cards}")[..]].join(",");
        for case in CASES {
            let job = on_cards(device, case, cards, &variables);
            let reports = card_reports(&format!("strictness-all-{}", device.name()), job, &lies);
            assert!(reports.lines().all(|line| line.contains(" live=0 ")), "{cards} cards, {case:?}: {reports}");
        }
    }
}

#[test]
fn the_rows_name_all_fourteen() {
    let named: BTreeSet<u32> = ROWS.iter().flat_map(|row| row.numbers).copied().collect();
    assert_eq!(named, (1..=14).collect());
}

mod cpu {
    use super::*;

    #[test]
    fn each_alone_with_one_card() {
        each_alone(Device::Cpu, 1);
    }

    #[test]
    fn each_alone_with_two_cards() {
        each_alone(Device::Cpu, 2);
    }

    #[test]
    fn all_together() {
        all_that_programs_can_live_with_together(Device::Cpu);
    }
}

mod cuda {
    use super::*;

    /// Runs a test where two PEs can use a GPU.
    fn where_possible(test: impl Fn(Device)) {
        if job("rma", Transport::Ibgda, 2).on(Device::Cuda).is_possible() {
            test(Device::Cuda);
        }
    }

    #[test]
    fn each_alone_with_one_card() {
        where_possible(|device| each_alone(device, 1));
    }

    #[test]
    fn each_alone_with_two_cards() {
        where_possible(|device| each_alone(device, 2));
    }

    #[test]
    fn all_together() {
        where_possible(all_that_programs_can_live_with_together);
    }
}
