//! Measured choices of algorithms, from the file that `OXSHMEM_TUNING` names.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use super::choice::{self, Chooser, Collectives, Shape};
use super::rows::blocks_with_room;
use crate::Config;
use crate::config::ConfigError;

/// The first line that says something.
const MAGIC: &str = "oxshmem-tuning 1";
/// Bytes of a file, at most: what is longer is no such file.
const LONGEST: u64 = 1 << 20;

/// Which algorithms collectives use by the shape of their team, as `oxshmem-tune` has measured it.
///
/// As text: a line `oxshmem-tuning 1`, and then lines of four words: nodes of a team, its PEs, a
/// collective, and its algorithms as in [`Collectives`]. A `#` begins a comment.
///
/// A team uses the rows for as many nodes and PEs as it has, since what is fastest for others may
/// be slower for it. Its nodes are the sets of its members that reach each other by load and store.
/// Collectives without such a row, and sizes for which a row says `library`, are carried out as
/// without the file.
///
/// ```
/// use oxshmem::Tuning;
///
/// let tuning: Tuning = "oxshmem-tuning 1\n1 2 reduce packets:16K/push:64M/library # measured\n".parse().unwrap();
/// assert_eq!(tuning.of(1, 2).to_string(), "reduce=packets:16K/push:64M/library");
/// assert_eq!(tuning.of(1, 4).to_string(), "");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning {
    rows: Vec<Row>,
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    nodes: usize,
    pes: usize,
    /// One collective.
    choice: Collectives,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wrong {
    line: usize,
    problem: String,
}

impl Tuning {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong: the error names the file, the line, the value and what
    /// to do.
    ///
    /// ```
    /// let error = oxshmem::Tuning::load(std::path::Path::new("/no/such/file")).unwrap_err();
    /// assert!(error.to_string().starts_with("OXSHMEM_TUNING=/no/such/file: "));
    /// ```
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let wrong = |line, problem| ConfigError::File {
            name: "OXSHMEM_TUNING",
            path: path.display().to_string(),
            line,
            problem,
        };
        let unreadable = |error: std::io::Error| {
            wrong(None, format!("{error}; make the file with oxshmem-tune, or unset the variable"))
        };
        let found = fs::metadata(path).map_err(unreadable)?;
        if !found.is_file() || found.len() > LONGEST {
            let what =
                if found.is_file() { format!("it has {} bytes", found.len()) } else { "it is not a file".to_owned() };
            let rest = format!("expected a file of at most {LONGEST} bytes that oxshmem-tune has written");
            return Err(wrong(None, format!("{what}; {rest}")));
        }
        let bytes = fs::read(path).map_err(unreadable)?;
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(&text).map_err(|Wrong { line, problem }| wrong(Some(line), problem))
    }

    /// Reads the file that a configuration names, if it names one.
    ///
    /// # Errors
    /// Fails like [`load`](Self::load).
    ///
    /// ```
    /// use oxshmem::{Config, Tuning};
    ///
    /// assert!(Tuning::of_config(&Config::builder().build()?)?.is_empty());
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    pub fn of_config(config: &Config) -> Result<Self, ConfigError> {
        Ok(config.tuning().as_deref().map(Self::load).transpose()?.unwrap_or_default())
    }

    /// Returns what a team of that many nodes and PEs uses with a configuration whose file this is,
    /// written as in `OXSHMEM_COLLECTIVES`; [`Team::algorithms`](crate::Team::algorithms) of such a
    /// team.
    ///
    /// ```
    /// use oxshmem::{Config, Tuning};
    ///
    /// let config = Config::builder().collectives("fcollect=push".parse::<oxshmem::Collectives>().unwrap()).build()?;
    /// let used = Tuning::of_config(&config)?.algorithms(&config, 1, 2);
    /// assert!(used.contains("fcollect=push") && used.contains("reduce=packets:8K/push"));
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    #[must_use]
    pub fn algorithms(&self, config: &Config, nodes: usize, pes: usize) -> String {
        let overrides = config.collectives().in_use(config.collectives_sms(), &self.of(nodes, pes));
        choice::describe(Shape::new(pes, nodes, config.collectives_sms().max(1)), &overrides)
    }

    /// Returns what the same team uses on streams and from the host, in a job of as many PEs in
    /// which each has a device of its own: after each algorithm and the size up to which it is used
    /// the fewest and the most blocks that share a collective then, in brackets; copy engines have
    /// none.
    ///
    /// ```
    /// use oxshmem::{Config, Tuning};
    ///
    /// let config = Config::builder().build()?;
    /// let used = Tuning::of_config(&config)?.plans(&config, 1, 2);
    /// assert!(used.contains("reduce=packets:512K[1-72]/oneshot:"), "{used}");
    /// # Ok::<(), oxshmem::Error>(())
    /// ```
    #[must_use]
    pub fn plans(&self, config: &Config, nodes: usize, pes: usize) -> String {
        let in_use = config.collectives().in_use(config.collectives_sms(), &self.of(nodes, pes));
        let shape = Shape::new(pes, nodes, blocks_with_room(pes as u64, config));
        Chooser::new(Shape { own_devices: true, ..shape }, config.collectives(), &in_use).describe_plans()
    }

    fn parse(text: &str) -> Result<Self, Wrong> {
        let mut tuning = Self::default();
        let mut begun = false;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |problem| Wrong { line: number, problem };
            if !begun {
                if line != MAGIC {
                    let remedy = "measure anew with the oxshmem-tune of this release";
                    return Err(wrong(format!("'{line}': expected '{MAGIC}' before anything else; {remedy}")));
                }
                begun = true;
                continue;
            }
            let row = row(line).map_err(wrong)?;
            let is_same =
                |other: &Row| (other.nodes, other.pes) == (row.nodes, row.pes) && other.choice.is_of_same(&row.choice);
            if tuning.rows.iter().any(is_same) {
                return Err(wrong(format!("'{line}': a line before has these nodes, PEs and collective; remove one")));
            }
            tuning.rows.push(row);
        }
        if begun {
            Ok(tuning)
        } else {
            let line = text.lines().count().max(1);
            Err(Wrong { line, problem: format!("the file ends before '{MAGIC}'; measure anew with oxshmem-tune") })
        }
    }

    /// Returns what the file says for a team of that many nodes and PEs.
    ///
    /// ```
    /// let tuning: oxshmem::Tuning = "oxshmem-tuning 1\n2 8 fcollect levels\n".parse().unwrap();
    /// assert_eq!(tuning.of(2, 8).to_string(), "fcollect=levels");
    /// ```
    #[must_use]
    pub fn of(&self, nodes: usize, pes: usize) -> Collectives {
        let rows = self.rows.iter().filter(|row| (row.nodes, row.pes) == (nodes, pes));
        rows.fold(Collectives::default(), |chosen, row| chosen.or(&row.choice))
    }

    /// Returns how many lines say something of a collective.
    ///
    /// ```
    /// assert_eq!(oxshmem::Tuning::default().len(), 0);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns these lines.
    ///
    /// ```
    /// let tuning: oxshmem::Tuning = "oxshmem-tuning 1\n2  8  fcollect levels".parse().unwrap();
    /// assert_eq!(tuning.lines(), ["2 8 fcollect levels"]);
    /// ```
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line =
            |Row { nodes, pes, choice }: &Row| format!("{nodes} {pes} {}", choice.to_string().replacen('=', " ", 1));
        self.rows.iter().map(line).collect()
    }

    /// Returns whether there is no such line.
    ///
    /// ```
    /// assert!(oxshmem::Tuning::default().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

fn row(line: &str) -> Result<Row, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [nodes, pes, collective, algorithms] = words[..] else {
        return Err(format!("'{line}': expected four words: nodes, PEs, collective, algorithms"));
    };
    let number = |what, word: &str| {
        let number = word.parse().ok().filter(|number| (1..=crate::abi::MAX_PES as usize).contains(number));
        number.ok_or_else(|| format!("{what} '{word}': expected a number from 1 to {}", crate::abi::MAX_PES))
    };
    let (nodes, pes): (usize, usize) = (number("nodes", nodes)?, number("PEs", pes)?);
    if nodes > pes {
        return Err(format!("nodes '{nodes}': expected at most as many as PEs, which are {pes}"));
    }
    let choice = format!("{collective}={algorithms}").parse::<Collectives>().map_err(|_| {
        format!(
            "'{collective} {algorithms}': expected a collective and up to three algorithms that it has, with ascending sizes, like 'reduce packets:16K/push:64M/library'; see OXSHMEM_COLLECTIVES in docs/environment.md"
        )
    })?;
    Ok(Row { nodes, pes, choice })
}

impl FromStr for Tuning {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|Wrong { line, problem }| format!("line {line}: {problem}"))
    }
}

impl fmt::Display for Tuning {
    /// Writes what [`load`](Self::load) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{MAGIC}")?;
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FILE: &str = "# measured\n\noxshmem-tuning 1\n1 2 reduce packets:16K/push\n1 8 reduce push # more\n4 8 reduce levels\n2 4 reduce tree:8K/levels\n2 16 reduce tree\n1 2 fcollect push\n";

    #[test]
    fn what_is_written_is_read() {
        let tuning: Tuning = FILE.parse().unwrap();
        assert_eq!((tuning.len(), tuning.to_string().parse()), (6, Ok(tuning)));
    }

    #[test]
    fn a_team_uses_the_rows_for_its_nodes_and_pes() {
        let tuning: Tuning = FILE.parse().unwrap();
        for (nodes, pes, expected) in [
            (1, 2, "reduce=packets:16K/push,fcollect=push"),
            (1, 8, "reduce=push"),
            (2, 4, "reduce=tree:8K/levels"),
            (4, 8, "reduce=levels"),
            (1, 3, ""),
            (1, 64, ""),
            (2, 8, ""),
            (3, 4, ""),
        ] {
            assert_eq!(tuning.of(nodes, pes).to_string(), expected, "{nodes} nodes, {pes} PEs");
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        let head = "oxshmem-tuning 1\n";
        for (text, line, said) in [
            (String::new(), 1, "ends before"),
            ("# nothing\n\n".into(), 2, "ends before"),
            ("oxshmem-tuning 2\n".into(), 1, "'oxshmem-tuning 2': expected 'oxshmem-tuning 1'"),
            (format!("{head}1 2 reduce\n"), 2, "four words"),
            (format!("{head}\nx 2 reduce push\n"), 3, "nodes 'x': expected a number from 1 to 4096"),
            (format!("{head}1 0 reduce push\n"), 2, "PEs '0'"),
            (format!("{head}1 5000 reduce push\n"), 2, "PEs '5000'"),
            (format!("{head}3 2 reduce push\n"), 2, "nodes '3': expected at most as many as PEs, which are 2"),
            (format!("{head}1 2 gather push\n"), 2, "'gather push'"),
            (format!("{head}1 2 fcollect tree\n"), 2, "'fcollect tree'"),
            (format!("{head}1 2 reduce push:8K/tree:4K\n"), 2, "ascending"),
            (format!("{head}1 2 reduce push\n1 2 reduce tree\n"), 3, "remove one"),
        ] {
            let wrong = Tuning::parse(&text).unwrap_err();
            assert_eq!(wrong.line, line, "{text:?}");
            assert!(wrong.problem.contains(said), "{text:?}: {}", wrong.problem);
        }
    }
}
