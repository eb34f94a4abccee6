//! Runs the programs and reads their replies.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oxshmem::launch::{self, LaunchOptions, Output};
use serde::Deserialize;

use super::rows;
use crate::job::complaints;

/// Measurements of each row in one run of a program.
pub const SAMPLES: u64 = 3;

/// A program of one side.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name, for messages.
    pub side: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// Variables it needs.
    pub env: Vec<(String, String)>,
    /// The variable that is to name a file that does not exist yet, if it needs one.
    pub fresh_file: Option<&'static str>,
    /// The `oxrun` that starts its PEs, if the driver itself cannot: an earlier build may speak
    /// another version of the bootstrap protocol.
    pub oxrun: Option<PathBuf>,
}

impl Program {
    /// Returns how `pes` PEs of it are started with `plan`, or with `plan` and `posting`.
    fn options(&self, pes: u32, plan: PathBuf, posting: bool) -> LaunchOptions {
        let options = match &self.oxrun {
            None => LaunchOptions::new(pes, &self.path),
            Some(oxrun) => {
                LaunchOptions::new(1, oxrun).args(["--no-prefix", "-n", &pes.to_string()]).args([&self.path])
            }
        };
        let options = options.args([plan]);
        if posting { options.args(["posting"]) } else { options }
    }
}

/// How the PEs of a run are started.
#[derive(Debug, Clone)]
pub struct Start<'a> {
    /// Their number.
    pub pes: u32,
    /// The longest that a run may take.
    pub timeout: Duration,
    /// Where plans and the like are kept meanwhile.
    pub folder: &'a Path,
}

/// Rows that can be measured in one run, since they need the same between the PEs.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// What that is. All rows have the same contexts, too.
    pub path: rows::Path,
    /// The rows.
    pub rows: Vec<&'static rows::Row>,
}

impl Group {
    /// Splits `rows` by what they need, in their order.
    pub fn split(rows: &[&'static rows::Row]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for row in rows {
            match groups.iter_mut().find(|group| group.path == row.path && group.rows[0].contexts == row.contexts) {
                Some(group) => group.rows.push(row),
                None => groups.push(Self { path: row.path, rows: vec![row] }),
            }
        }
        groups
    }
}

/// What a side has answered so far.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// Name and version of the library.
    pub library: Option<String>,
    /// Nanoseconds of each sample, by row.
    pub samples: HashMap<&'static str, Vec<u64>>,
    /// What went wrong, by row; a row that has failed once is not tried again.
    pub failures: Vec<(&'static str, String)>,
}

/// A line of a program's output.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Library { library: String },
    Row { row: String, ns: Vec<u64> },
}

fn plan(rows: &[&rows::Row]) -> String {
    rows.iter().fold(String::new(), |mut text, row| {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{} {} {} {} {} {} {} {} {} {} {SAMPLES}",
            row.name,
            row.kernel,
            row.ctas,
            row.threads,
            row.bytes,
            row.stride,
            row.step,
            row.steps,
            row.warmup,
            row.iters
        );
        if let Some(contexts) = row.contexts {
            let _ = write!(text, " {} {} {}", contexts.sharing, contexts.count, contexts.depth);
        }
        text.push('\n');
        text
    })
}

fn environment(path: rows::Path) -> Vec<(String, String)> {
    let mut env = vec![("OXSHMEM_DEVICE".to_owned(), "cuda".to_owned())];
    let mut set = |name: &str, value: &str| env.push((name.to_owned(), value.to_owned()));
    match path {
        rows::Path::P2p => set("OXSHMEM_TRANSPORT", "p2p"),
        rows::Path::NullCard { qps, depth } => {
            set("OXSHMEM_TRANSPORT", "ibgda");
            set("OXSHMEM_HCA", "null");
            set("OXSHMEM_QP_DEPTH", &depth.to_string());
            set("OXSHMEM_QPS_PER_PEER", &qps.to_string());
        }
    }
    env
}

impl Answers {
    /// Runs `program` over the rows of `group` once, and adds what it replies. After a row that
    /// fails, the next ones are tried in a new job.
    pub fn add_run(&mut self, program: &Program, group: &Group, start: &Start<'_>) {
        let mut rest: Vec<&'static rows::Row> =
            group.rows.iter().copied().filter(|row| self.failures.iter().all(|(name, _)| *name != row.name)).collect();
        while !rest.is_empty() {
            let (done, failure) = self.job(program, group.path, &rest, start);
            match failure {
                // A job that fails after its last row has failed in that one.
                Some(text) => {
                    let failed = done.min(rest.len() - 1);
                    self.failures.push((rest[failed].name, text));
                    rest.drain(..=failed);
                }
                None => return,
            }
        }
    }

    /// Runs one job; how many of its rows were answered, and why not all if so.
    fn job(
        &mut self,
        program: &Program,
        path: rows::Path,
        rows: &[&'static rows::Row],
        start: &Start<'_>,
    ) -> (usize, Option<String>) {
        let plan_file = start.folder.join(format!("plan-{}", program.side));
        if let Err(error) = std::fs::write(&plan_file, plan(rows)) {
            return (0, Some(format!("{}: {error}", plan_file.display())));
        }
        let mut options = LaunchOptions {
            output: Output::Captured,
            timeout: Some(start.timeout),
            ..program.options(start.pes, plan_file, path != rows::Path::P2p)
        };
        for (name, value) in program.env.iter().cloned().chain(environment(path)) {
            options = options.env(name, value);
        }
        if let Some(variable) = program.fresh_file {
            let file = start.folder.join(format!("fresh-{}", program.side));
            // It may be there from the run before, or not.
            let _ = std::fs::remove_file(&file);
            options = options.env(variable, file);
        }
        let outcome = match launch::run(&options) {
            Ok(outcome) => outcome,
            Err(error) => return (0, Some(error.to_string())),
        };
        let text = String::from_utf8_lossy(&outcome.pes[0].stdout);
        let mut done = 0;
        // Libraries may print, too.
        for answer in text.lines().filter_map(|line| serde_json::from_str::<Answer>(line).ok()) {
            match answer {
                Answer::Library { library } => self.library = Some(library),
                Answer::Row { row, ns } => match rows.get(done).filter(|expected| expected.name == row) {
                    Some(expected) => {
                        self.samples.entry(expected.name).or_default().extend(ns);
                        done += 1;
                    }
                    None => return (done, Some(format!("{row} was answered, which is not the next row of the plan"))),
                },
            }
        }
        let failure = match complaints(&outcome).as_slice() {
            [] if done == rows.len() => None,
            [] => Some("ended without an answer to every row".to_owned()),
            lines => Some(lines.join("; ")),
        };
        (done, failure)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::table;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A stand-in for a program: a shell script.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, text: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("oxshmem-compare-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join("program");
            std::fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            Self(folder)
        }

        fn run(&self, answers: &mut Answers, group: &Group) {
            let program = Program {
                side: "ours",
                path: self.0.join("program"),
                env: vec![("GREETING".to_owned(), "hello".to_owned())],
                fresh_file: Some("FRESH"),
                oxrun: None,
            };
            let start = Start { pes: 2, timeout: Duration::from_secs(20), folder: &self.0 };
            answers.add_run(&program, group, &start);
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn p2p(n: usize) -> Group {
        let groups = Group::split(&table::ROWS.iter().collect::<Vec<_>>());
        assert_eq!(groups[0].path, rows::Path::P2p);
        Group { path: rows::Path::P2p, rows: groups[0].rows[..n].to_vec() }
    }

    const ANSWER: &str = r#"
[ "$GREETING" = hello ] && [ ! -e "$FRESH" ] && [ "$OXSHMEM_TRANSPORT" = p2p ] || exit 3
[ "$OXSHMEM_RANK" = 0 ] || exit 0
echo 'a library says something'
echo '{"library":"Fake 1.0"}'
while read -r name kernel rest; do
    case $name in $BROKEN) echo "no luck with $name" >&2; exit 1 ;; esac
    echo "{\"row\":\"$name\",\"ns\":[100,200,300]}"
done <"$1"
"#;

    #[test]
    fn answers_accumulate_over_runs() {
        let script = Script::new("accumulate", &format!("BROKEN=none{ANSWER}"));
        let mut answers = Answers::default();
        for _ in 0..2 {
            script.run(&mut answers, &p2p(3));
        }
        assert_eq!((answers.library.as_deref(), answers.failures.len()), (Some("Fake 1.0"), 0), "{answers:?}");
        assert_eq!(answers.samples.len(), 3);
        assert!(answers.samples.values().all(|ns| *ns == [100, 200, 300, 100, 200, 300]));
    }

    #[test]
    fn a_row_that_fails_is_named_and_the_others_are_measured() {
        let group = p2p(4);
        let broken = group.rows[1].name;
        let script = Script::new("broken", &format!("BROKEN={broken}{ANSWER}"));
        let mut answers = Answers::default();
        for _ in 0..2 {
            script.run(&mut answers, &group);
        }
        assert_eq!(answers.failures.len(), 1, "{answers:?}");
        assert!(answers.failures[0].0 == broken && answers.failures[0].1.contains("no luck with"), "{answers:?}");
        assert_eq!(answers.samples.len(), 3);
        assert!(!answers.samples.contains_key(broken));
    }

    #[test]
    fn a_program_that_answers_nothing_fails_every_row() {
        for (name, text) in [("silent", "exit 0"), ("dying", "echo dead >&2; exit 7")] {
            let script = Script::new(name, text);
            let mut answers = Answers::default();
            script.run(&mut answers, &p2p(2));
            assert_eq!((answers.samples.len(), answers.failures.len()), (0, 2), "{answers:?}");
            let reason = if name == "silent" { "without an answer" } else { "dead" };
            assert!(answers.failures.iter().all(|(_, text)| text.contains(reason)), "{answers:?}");
        }
    }

    #[test]
    fn an_earlier_build_is_started_by_its_oxrun() {
        let script = Script::new("earlier", "exit 9");
        let oxrun = script.0.join("oxrun");
        let text = format!("#!/bin/sh\n[ \"$1 $2 $3\" = '--no-prefix -n 2' ] || exit 4\nshift 4\nBROKEN=none{ANSWER}");
        std::fs::write(&oxrun, text).unwrap();
        std::fs::set_permissions(&oxrun, PermissionsExt::from_mode(0o755)).unwrap();
        let program = Program {
            side: "previous",
            path: script.0.join("program"),
            env: vec![("GREETING".to_owned(), "hello".to_owned())],
            fresh_file: Some("FRESH"),
            oxrun: Some(oxrun),
        };
        let start = Start { pes: 2, timeout: Duration::from_secs(20), folder: &script.0 };
        let mut answers = Answers::default();
        answers.add_run(&program, &p2p(2), &start);
        assert_eq!((answers.samples.len(), answers.failures.len()), (2, 0), "{answers:?}");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let script = Script::new("hanging", "exec sleep 1000");
        let program =
            Program { side: "ours", path: script.0.join("program"), env: Vec::new(), fresh_file: None, oxrun: None };
        let start = Start { pes: 2, timeout: Duration::from_millis(200), folder: &script.0 };
        let mut answers = Answers::default();
        answers.add_run(&program, &p2p(1), &start);
        assert_eq!((answers.samples.len(), answers.failures.len()), (0, 1), "{answers:?}");
    }

    #[test]
    fn rows_are_grouped_by_what_they_need() {
        let all: Vec<_> = table::ROWS.iter().collect();
        let groups = Group::split(&all);
        assert_eq!(groups.iter().map(|group| group.rows.len()).sum::<usize>(), all.len());
        for group in &groups {
            assert!(group.rows.iter().all(|row| row.path == group.path && row.contexts == group.rows[0].contexts));
            assert_eq!(plan(&group.rows).lines().count(), group.rows.len());
        }
        assert!(groups.len() > 1 && groups.len() < 16);
    }
}
