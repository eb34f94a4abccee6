//! What only a card can say: five questions, which are asked before everything else.

use std::fmt::Write as _;

use serde_json::Value;

use crate::parts::{read_lines, verdict};
use crate::report::{Group, Item, Status, say};
use crate::step::{Ended, Runner, Step};

/// A question.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// Its name in tables and logs.
    pub name: &'static str,
    /// What is asked.
    pub asks: &'static str,
    /// How it is found out.
    pub by: &'static str,
    find: fn(&Asking<'_>) -> Result<String, Status>,
}

/// What asks: programs and how they are told to use the card.
#[derive(Debug)]
pub struct Asking<'a> {
    /// Runs them.
    pub runner: &'a Runner,
    /// Tells a step to use the card.
    pub through_the_card: &'a dyn StepFor,
    /// Options that keep a performance test to seconds.
    pub brief: &'a [&'a str],
}

/// Something that completes steps.
pub trait StepFor: std::fmt::Debug {
    /// Returns the step with what leads it over the card.
    fn complete(&self, step: Step) -> Step;
}

/// All of them, in the order in which they are asked.
pub const QUESTIONS: [Question; 5] = [
    Question {
        name: "loopback",
        asks: "does a queue pair reach its own card?",
        by: "atomics of PEs on their own memory, with OXSHMEM_ATOMICS=card",
        find: loopback,
    },
    Question {
        name: "uar",
        asks: "which kind of doorbell page does the driver give, and what rings in it?",
        by: "what init says that it tried",
        find: uar,
    },
    Question {
        name: "put_signal",
        asks: "what does strong ordering cost a put with a signal?",
        by: "shmem_put_signal_ping_pong with 8 bytes, with OXSHMEM_IB_STRONG_ORDERING=0 and 1",
        find: put_signal,
    },
    Question {
        name: "umem",
        asks: "does the card read its queues in GPU memory, by dma-buf?",
        by: "what init says that it tried",
        find: umem,
    },
    Question {
        name: "masked-cas",
        asks: "are 64-bit masked compare-and-swaps right?",
        by: "bitwise atomics and swaps of 4 and 8 bytes whose results are compared, with OXSHMEM_ATOMICS=card",
        find: masked_cas,
    },
];

impl Asking<'_> {
    /// Two PEs of a case of `conformance-pe`.
    fn case(&self, question: &str, case: &str, variables: &[(&str, &str)]) -> Result<Ended, Status> {
        let (Some(oxrun), Some(pe)) = (self.runner.program("oxrun"), self.runner.program("conformance-pe")) else {
            return Err(Status::Failed("oxrun and conformance-pe are not beside this program".to_owned()));
        };
        let step = Step::new(format!("question-{question}"), oxrun).args(["-n", "2"]).args([pe]).args([case]);
        let step = variables.iter().fold(step, |step, (name, value)| step.env(name, *value));
        let ended = self.runner.run(&self.through_the_card.complete(step));
        if ended.good { Ok(ended) } else { Err(verdict(&ended)) }
    }
}

/// Lines of init's report that begin so, each once, without the beginning.
fn attempts<'a>(text: &'a str, beginning: &str) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    // Lines of two PEs, which the launcher may put a number before.
    for line in text.lines().filter_map(|line| line.split_once("attempt ").map(|(_, attempt)| attempt)) {
        if line.starts_with(beginning) && !found.contains(&line) {
            found.push(line);
        }
    }
    found
}

fn loopback(asking: &Asking<'_>) -> Result<String, Status> {
    let ended = asking.case("loopback", "hca_loopback", &[("OXSHMEM_ATOMICS", "card")])?;
    let line = ended.text.lines().find_map(|line| line.split_once("loopback ").map(|(_, rest)| rest));
    line.map(|line| format!("yes: {line}"))
        .ok_or_else(|| Status::Failed("the PE said nothing of its queue pairs to itself".to_owned()))
}

fn uar(asking: &Asking<'_>) -> Result<String, Status> {
    let ended = asking.case("uar", "hca_report", &[])?;
    let mut tried = attempts(&ended.text, "doorbell page");
    tried.extend(attempts(&ended.text, "doorbells rung"));
    match tried.is_empty() {
        true => Err(Status::Failed("init said nothing of doorbell pages".to_owned())),
        false => Ok(tried.join("; ")),
    }
}

fn put_signal(asking: &Asking<'_>) -> Result<String, Status> {
    const PROGRAM: &str = "shmem_put_signal_ping_pong";
    let Some(program) = asking.runner.program(PROGRAM) else {
        return Err(Status::Failed(format!("{PROGRAM} is not beside this program")));
    };
    let time = |strong: &str| -> Result<f64, Status> {
        let json = asking.runner.out.join(format!("question-put_signal-{strong}.jsonl"));
        let step = Step::new(format!("question-put_signal-{strong}"), &program)
            .args(["-b", "8", "-e", "8"])
            .args(asking.brief.iter().copied())
            .args([std::path::Path::new("--json"), &json])
            .env("OXSHMEM_IB_STRONG_ORDERING", strong);
        let ended = asking.runner.run(&asking.through_the_card.complete(step));
        if !ended.good {
            return Err(verdict(&ended));
        }
        let lines = read_lines(&json);
        let times = lines.iter().filter_map(|line| line["us_p50"].as_f64());
        times.reduce(f64::min).ok_or_else(|| Status::Failed("no time was measured".to_owned()))
    };
    let (without, with) = (time("0")?, time("1")?);
    Ok(format!(
        "{without:.2} us one way without strong ordering, {with:.2} us with it: it costs {:.2} us",
        with - without
    ))
}

fn umem(asking: &Asking<'_>) -> Result<String, Status> {
    let ended = asking.case("umem", "hca_report", &[])?;
    let mut tried: Vec<&str> =
        attempts(&ended.text, "").into_iter().filter(|line| line.contains(" as umem ")).collect();
    tried.extend(attempts(&ended.text, "queues in memory"));
    match tried.is_empty() {
        true => Err(Status::Failed("init said nothing of umems".to_owned())),
        false => Ok(tried.join("; ")),
    }
}

fn masked_cas(asking: &Asking<'_>) -> Result<String, Status> {
    asking.case("masked-cas", "atomic_values", &[("OXSHMEM_ATOMICS", "card")])?;
    Ok("yes: all results are as they should be, on a PE's own memory and on its peer's".to_owned())
}

/// Asks all of them, and prints each finding in a line; the findings for the summary.
pub fn ask(asking: &Asking<'_>, group: &mut Group) -> String {
    let mut text = String::new();
    for question in QUESTIONS {
        let begun = std::time::Instant::now();
        let (finding, status) = match (question.find)(asking) {
            Ok(finding) => (finding, Status::Passed),
            Err(Status::Failed(how)) => (format!("NO ANSWER: {how}"), Status::Failed(how)),
            Err(other) => (format!("not asked: {other:?}"), other),
        };
        group.seconds += begun.elapsed().as_secs_f64();
        group.lines.push(serde_json::json!({ "question": question.name, "finding": finding }));
        group.items.push(Item { name: question.name.to_owned(), status });
        tell(&mut text, question, &finding);
    }
    text
}

/// Says of each question that it was not asked, why, and how it would have been.
pub fn leave_out(reason: &str, group: &mut Group) -> String {
    let mut text = String::new();
    group.items.push(Item { name: "path".to_owned(), status: Status::Skipped(reason.to_owned()) });
    for question in QUESTIONS {
        tell(&mut text, question, &format!("not asked; with a card by {}", question.by));
    }
    text
}

fn tell(text: &mut String, question: Question, finding: &str) {
    say(&format!("{}: {} {finding}", question.name, question.asks));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "* {}: {} {finding}", question.name, question.asks);
}

/// The best figures of the published experiment over both transports, in a line.
pub fn experiment(rows: &[Value]) -> String {
    let best = |bench: &str, transport: &str, figure: &str| {
        let of = rows.iter().filter(|row| row["bench"] == bench && row["transport"] == transport);
        of.filter_map(|row| row[figure].as_f64()).fold(0.0, f64::max)
    };
    let each = |transport: &str| {
        let (bandwidth, rate) = (best("shmem_put_bw", transport, "gbps"), best("shmem_p_bw", transport, "mops"));
        format!("{transport} {bandwidth:.3} GB/s of puts and {rate:.3} million p a second")
    };
    format!("at most {}, {}", each("ibgda"), each("ibrc"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn attempts_are_found_in_the_output_of_several_pes() {
        let text = "PE 0: attempt doorbell page, not cached: given\nattempt doorbell page, not cached: given\nother\n\
                    attempt queues in memory of the device: no: x\n";
        assert_eq!(attempts(text, "doorbell page"), ["doorbell page, not cached: given"]);
        assert_eq!(attempts(text, "").len(), 2);
    }

    #[test]
    fn the_best_figures_of_the_experiment_are_told() {
        let row = |bench: &str, transport: &str, gbps: f64, mops: f64| json!({ "bench": bench, "transport": transport, "gbps": gbps, "mops": mops });
        let rows = [
            row("shmem_put_bw", "ibgda", 1.0, 9.0),
            row("shmem_put_bw", "ibgda", 2.5, 9.0),
            row("shmem_p_bw", "ibgda", 9.0, 7.0),
            row("shmem_put_bw", "ibrc", 0.5, 9.0),
            json!("no figure"),
        ];
        let text = experiment(&rows);
        let expected = "at most ibgda 2.500 GB/s of puts and 7.000 million p a second, ibrc 0.500 GB/s of puts and 0.000 million p a second";
        assert_eq!(text, expected);
    }

    #[test]
    fn without_a_card_each_question_says_how_it_would_be_asked() {
        let mut group = Group::default();
        let text = leave_out("no card", &mut group);
        assert_eq!((text.lines().count(), group.items.len()), (5, 1));
        assert!(text.lines().all(|line| line.contains("? not asked; with a card by ")), "{text}");
        assert!(group.items.iter().all(|item| item.status == Status::Skipped("no card".to_owned())));
    }
}
