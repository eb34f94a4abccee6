//! The idioms that are rejected, each with what to write instead.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

use crate::extract::{Paragraph, paragraphs};
use crate::tree::Language;

/// One idiom that reads as translated.
#[derive(Debug)]
struct Idiom {
    pattern: Regex,
    instead: &'static str,
}

/// Pattern and advice. A sentence begins at the start of a paragraph or after a full stop.
const TABLE: &[(&str, &str)] = &[
    (r"(?i)\b(no|some|any|every)body('s)?\b", "the actor: the thread, the PE, the kernel, the host"),
    (
        r"\bAnswers\b|\banswers (0|1|-1|~0|[A-Z_]+|null|false|true|not|nothing|what|where|whether|how|an?)\b",
        "\"returns\", or \"replies\" for a message",
    ),
    (r"(?i)\bwho(ever|m|mever)?\b", "the actor, or \"that\": code is not a person"),
    (
        r"(?i)\b(the|an|all|any|every|and|or|from|to|with|only) own\b",
        "whose it is: \"this PE's\", \"the caller's own\"",
    ),
    (r"(?i)\bto be had\b", "\"available\""),
    (
        r"(?i)\b(is|are|was|were|be|been|being|it|they|one|if|all|first|ever|[a-z]+ed|card|device|name|port) (is |was |were |are )?asked for\b",
        "\"requested\"",
    ),
    (r"(?i)\bfor ever\b", "\"forever\", or the deadline"),
    (r"(?i)\b(one|each) behind the other\b", "\"in sequence\", \"back to back\""),
    (
        r"(?i)\b(index|blocks?|bytes?|words?|signal|member|chunk|doorbell|requests?|posted|comes?|stays?|queued|fenced|barrier|flushed|travels|launched|starts?|before (and|or)) behind\b",
        "\"after\"",
    ),
    (
        r"(?i)\bbehind (all|everything|what was|a fence|a barrier|the fence|the barrier|a kernel|the last|the first|the end|the one|its end)\b",
        "\"after\"",
    ),
    (
        r"(^|[.;:!?] )Of (a|an|all|the|each|every|this|that|these|those|several|what|its|times|equals?|some|two|which|such)\b|^Of [^,]*\.?$",
        "a full sentence that begins with the subject",
    ),
    (r"^(\* )?As [^,;]*(\.|;|$)", "\"Like X\", \"Fails like X\", or a full sentence"),
    (r"^(\* )?(As|So) (many|much|often|few|little|long|deep|far|that)\b", "a full sentence with a verb"),
    (r"(^|[.;:!?] )That (an?|the|no|nobody|these|it|all|its|others?) ", "a sentence whose subject is the actor"),
    (r"(^|[.;:!?] )(So|Nor) (is|are|does|do|may|can|has|have|will|must)\b", "one sentence about both subjects"),
    (
        r"(?i)\b(after|in|at most|least|up to|of|from|every|for|with|beside) so (many|much|few)\b",
        "\"that many\", or the number",
    ),
    (r"(?i)\bwhat (there is|is there) to\b", "the thing by its name"),
    (
        r"(?i)\b(is|are|was|were) no (error|failure|member|collective|counter|loss|limit|multiple)s?\b",
        "\"is not a ...\"",
    ),
    (r"(?i)\bbut for (the|those|a|an|its)\b", "\"except for\""),
    (r"(?i)\balso (if|where|when|after)\b", "\"even if\", \"even where\""),
    (r"(?i)\bin front of (it|them|the)\b", "\"before\""),
    (r"(?i)\bof no more use\b", "\"cannot be used any more\""),
];

static IDIOMS: LazyLock<Vec<Idiom>> = LazyLock::new(|| {
    let compile = |(pattern, instead): &(&'static str, &'static str)| Idiom {
        pattern: Regex::new(pattern).expect("the table's patterns are valid"),
        instead,
    };
    TABLE.iter().map(compile).collect()
});

/// A place where an idiom was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the root.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// What was found, with a few words around it.
    pub excerpt: String,
    /// What to write instead.
    pub instead: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: \"{}\": write {}", self.path, self.line, self.excerpt, self.instead)
    }
}

/// Finds the idioms in `source`, except those that `allowed` lists for the file.
pub fn check(path: &str, language: Language, source: &str, allowed: &Allowed) -> Vec<Finding> {
    let mut findings = Vec::new();
    for paragraph in paragraphs(language, source) {
        // Patterns overlap; one finding for each place is enough.
        let mut hits: Vec<std::ops::Range<usize>> = Vec::new();
        for idiom in IDIOMS.iter() {
            for hit in idiom.pattern.find_iter(&paragraph.text) {
                if hits.iter().any(|other| other.start < hit.end() && hit.start() < other.end) {
                    continue;
                }
                hits.push(hit.range());
                if !allowed.covers(path, &paragraph.text, hit.start(), hit.end()) {
                    findings.push(Finding {
                        path: path.to_owned(),
                        line: paragraph.line_at(hit.start()),
                        excerpt: excerpt(&paragraph, hit.start(), hit.end()),
                        instead: idiom.instead,
                    });
                }
            }
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// The verbs in the imperative that functions might be described with. Words that are nouns more
/// often, such as "Queue" or "Order", are missing.
static IMPERATIVE: LazyLock<Regex> = LazyLock::new(|| {
    let verbs = "Accept|Add|Allocate|Append|Build|Carry|Change|Check|Close|Compile|Connect|Copy|Create|Decode|Define|\
                 Deregister|Destroy|Encode|Execute|Find|Forget|Get|Give|Keep|Leave|Let|Listen|Load|Look|Make|Move|Parse|\
                 Post|Publish|Put|Read|Rebuild|Receive|Register|Remove|Return|Run|Send|Set|Start|Stop|Store|Take|Tell|\
                 Translate|Unmap|Wait|Wake|Wrap|Write";
    Regex::new(&format!(r"^({verbs})\b")).expect("the pattern is valid")
});

/// A line that begins a function.
static FUNCTION: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"^(pub(\([^)]*\))? |\$\w+ )?(default |const |async |unsafe |extern "[^"]*" )*fn "#;
    Regex::new(pattern).expect("the pattern is valid")
});

/// Finds the documentation of Rust functions that begins with a verb in the imperative. Attributes
/// and comments may stand between the documentation and its function.
pub fn imperatives(path: &str, source: &str) -> Vec<Finding> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut findings = Vec::new();
    // The first line of the documentation that precedes this line.
    let mut first = None;
    let mut in_attribute = false;
    for (index, line) in lines.iter().enumerate() {
        if in_attribute {
            in_attribute = !line.ends_with(']');
        } else if line.starts_with("#[") {
            in_attribute = !line.contains(']');
        } else if line.starts_with("///") {
            first = first.or(Some(index));
        } else if !line.starts_with("//")
            && let Some(first) = first.take()
            && FUNCTION.is_match(line)
        {
            let text = lines[first].trim_start_matches('/').trim();
            if IMPERATIVE.is_match(text) {
                let instead = "the verb in the third person: \"Returns\", not \"Return\"";
                findings.push(Finding { path: path.to_owned(), line: first + 1, excerpt: text.to_owned(), instead });
            }
        }
    }
    findings
}

/// Returns the hit with about 30 bytes on either side, cut at characters.
fn excerpt(paragraph: &Paragraph, start: usize, end: usize) -> String {
    let text = &paragraph.text;
    let (mut from, mut to) = (start.saturating_sub(30), (end + 30).min(text.len()));
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    while !text.is_char_boundary(to) {
        to += 1;
    }
    text[from..to].trim().to_owned()
}

/// The legitimate uses: one a line, as `PATH: "WORDS": REASON`. `*` stands for every file.
#[derive(Debug, Default)]
pub struct Allowed {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    line: usize,
    path: String,
    words: String,
    used: std::cell::Cell<bool>,
}

impl Allowed {
    /// Parses the list.
    ///
    /// # Errors
    ///
    /// A line is not of the form above: the text names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let malformed = || format!("allowed.txt:{}: not of the form PATH: \"WORDS\": REASON: {line}", index + 1);
            let (path, rest) = line.split_once(": \"").ok_or_else(malformed)?;
            let (words, reason) = rest.split_once("\": ").ok_or_else(malformed)?;
            if words.is_empty() || reason.trim().is_empty() {
                return Err(malformed());
            }
            entries.push(Entry {
                line: index + 1,
                path: path.to_owned(),
                words: words.to_owned(),
                used: std::cell::Cell::new(false),
            });
        }
        Ok(Self { entries })
    }

    fn covers(&self, path: &str, text: &str, start: usize, end: usize) -> bool {
        let entry = self.entries.iter().find(|entry| {
            (entry.path == "*" || entry.path == path)
                && text.match_indices(&entry.words).any(|(at, words)| at <= start && end <= at + words.len())
        });
        entry.inspect(|entry| entry.used.set(true)).is_some()
    }

    /// Returns the lines of the list that no text has needed since it was parsed.
    pub fn unused(&self) -> Vec<usize> {
        self.entries.iter().filter(|entry| !entry.used.get()).map(|entry| entry.line).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn found(language: Language, source: &str) -> Vec<(usize, String)> {
        let findings = check("a.rs", language, source, &Allowed::default());
        findings.into_iter().map(|finding| (finding.line, finding.instead.to_owned())).collect()
    }

    #[test]
    fn planted_idioms_are_found_in_every_kind_of_text() {
        for (language, source, line) in [
            (Language::Rust, "fn f() {}\n\n/// Waits for what\n/// nobody sends.\nfn g() {}\n", 4),
            (Language::Rust, "fn f() {}\n/// The address of the\n/// own heap.\n", 2),
            (Language::Rust, "fn f() { error(\"the transport is not to be had\"); }\n", 1),
            (Language::Cpp, "int a; // whoever posts\n", 1),
            (Language::Cpp, "/* Answers 0,\n * or an error. */\n", 1),
            (Language::Hash, "a=1\n# the card that was asked for\n", 2),
            (Language::Hash, "echo 'it waits for ever'\n", 1),
            (Language::Markdown, "# Title\n\nThe messages come one\nbehind the other.\n", 3),
        ] {
            let found = found(language, source);
            assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [line], "{source}");
        }
    }

    #[test]
    fn fragments_are_found() {
        for text in [
            "As [`put`](Self::put).",
            "Of this process.",
            "So many are kept.",
            "It ends. That the card is gone is an error.",
        ] {
            assert_eq!(found(Language::Rust, &format!("/// {text}\nfn f() {{}}\n")).len(), 1, "{text}");
        }
    }

    #[test]
    fn every_pattern_finds_its_idiom() {
        let samples = [
            "nobody waits",
            "it answers 0",
            "code who posts",
            "the own heap",
            "not to be had",
            "the card that was asked for",
            "it waits for ever",
            "one behind the other",
            "the index behind it",
            "behind a fence",
            "Of the first",
            "As [put].",
            "So many are kept.",
            "That the card is gone",
            "So do others",
            "after so many bytes",
            "what there is to do",
            "that is no error",
            "all but for the last",
            "also if it ends",
            "in front of it",
            "the queue is of no more use",
        ];
        assert_eq!(samples.len(), TABLE.len());
        for (idiom, sample) in IDIOMS.iter().zip(samples) {
            assert!(idiom.pattern.is_match(sample), "{} does not match {sample}", idiom.pattern);
        }
    }

    #[test]
    fn imperatives_are_found_before_functions_alone() {
        let found = |source: &str| imperatives("a.rs", source).into_iter().map(|found| found.line).collect::<Vec<_>>();
        let attributes = "#[must_use]\n#[allow(\n    dead_code\n)]\n// A comment.\n";
        let source = format!("use a;\n\n/// Return it.\n/// More.\n{attributes}pub(super) unsafe fn f() {{}}\n");
        assert_eq!(found(&source), [3]);
        assert_eq!(found("trait A {\n    /// Decode, if it is there.\n    fn f();\n}\n"), [2]);
        for source in [
            "/// Returns it.\nfn f() {}\n",
            "/// Setting of the job.\nfn f() {}\n",
            "/// It goes.\n/// Make it go.\nfn f() {}\n",
            "/// Read by others.\nstruct A;\n\nfn f() {}\n",
        ] {
            assert!(found(source).is_empty(), "{source}");
        }
    }

    #[test]
    fn plain_sentences_pass() {
        let source = "/// Returns the address of this PE's heap. Code is exempt: `the own`, `who`.\n\
                      /// As the card sees it, the doorbell comes last. People use their own words. It leaves nothing behind.\n";
        assert_eq!(found(Language::Rust, source), []);
    }

    #[test]
    fn allowed_words_pass_in_their_file_only_and_stale_entries_show() {
        let allowed = Allowed::parse("# Uses.\na.rs: \"people who\": people\nb.rs: \"whoever\": stale\n").unwrap();
        let text = "// For people who read, and code who reads.\n";
        assert_eq!(check("a.rs", Language::Cpp, text, &allowed).len(), 1);
        assert_eq!(check("b.rs", Language::Cpp, text, &allowed).len(), 2);
        assert_eq!(allowed.unused(), [3]);
        assert!(Allowed::parse("a.rs: people who\n").unwrap_err().contains("allowed.txt:1"));
        assert!(Allowed::parse("a.rs: \"who\": \n").is_err());
    }
}
