//! Takes the prose out of a source file: comments, string literals, and the paragraphs of Markdown.

use crate::tree::Language;

/// Consecutive lines of prose, joined with blanks.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Paragraph {
    /// The text. Code in backticks is replaced by `` `_` ``.
    pub text: String,
    /// For each line: the offset in `text` where it begins, and its number in the file, from 1.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    /// Returns the number of the line that byte `offset` of the text stands in.
    pub fn line_at(&self, offset: usize) -> usize {
        self.lines.iter().rev().find(|(begin, _)| *begin <= offset).map_or(0, |(_, line)| *line)
    }

    fn push(&mut self, line: usize, text: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), line));
        self.text.push_str(text.trim());
    }
}

/// Returns the paragraphs of prose in `source`.
pub fn paragraphs(language: Language, source: &str) -> Vec<Paragraph> {
    let mut found = match language {
        Language::Markdown => markdown(source),
        Language::Hash => hash(source),
        Language::Rust | Language::Cpp => code(source),
    };
    for paragraph in &mut found {
        blank_code(paragraph);
    }
    found.retain(|paragraph| !paragraph.text.is_empty());
    found
}

/// Collects lines into paragraphs: an empty line, or a jump in the line numbers, ends one.
#[derive(Default)]
struct Collector {
    done: Vec<Paragraph>,
    open: Paragraph,
    last: usize,
}

impl Collector {
    fn line(&mut self, number: usize, text: &str) {
        let begins_item = text.starts_with("* ") || text.starts_with("- ") || text.starts_with('|');
        if text.is_empty() || begins_item || number > self.last + 1 {
            self.end();
        }
        if !text.is_empty() {
            self.open.push(number, text);
        }
        self.last = number;
    }

    fn end(&mut self) {
        if !self.open.text.is_empty() {
            self.done.push(std::mem::take(&mut self.open));
        }
    }

    fn finish(mut self) -> Vec<Paragraph> {
        self.end();
        self.done
    }
}

/// All of a Markdown file is prose, its code blocks included: their comments are read as well.
fn markdown(source: &str) -> Vec<Paragraph> {
    let mut collector = Collector::default();
    for (index, line) in source.lines().enumerate() {
        let text = line.trim_start().trim_start_matches("> ").trim();
        if text.starts_with("```") || text.starts_with('#') {
            collector.end();
        }
        collector.line(index + 1, text.trim_start_matches(['#', '/']).trim());
    }
    collector.finish()
}

/// Shell: comments and whatever commands print, which is any line.
fn hash(source: &str) -> Vec<Paragraph> {
    let mut comments = Collector::default();
    let mut rest = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let trimmed = line.trim_start();
        if let Some(text) = trimmed.strip_prefix('#') {
            comments.line(index + 1, text.trim());
        } else {
            let mut paragraph = Paragraph::default();
            paragraph.push(index + 1, trimmed);
            rest.push(paragraph);
        }
    }
    let mut found = comments.finish();
    found.append(&mut rest);
    found
}

/// Returns the string literals of several words in Rust, C, C++ or CUDA, each as one line.
pub fn strings(source: &str) -> Vec<String> {
    comments_and_strings(source).1.into_iter().map(|paragraph| paragraph.text).collect()
}

/// Rust, C, C++ and CUDA: comments, and string literals of several words.
fn code(source: &str) -> Vec<Paragraph> {
    let (mut found, mut strings) = comments_and_strings(source);
    found.append(&mut strings);
    found
}

fn comments_and_strings(source: &str) -> (Vec<Paragraph>, Vec<Paragraph>) {
    let bytes = source.as_bytes();
    let (mut comments, mut strings) = (Collector::default(), Vec::new());
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &source[at..];
        if rest.starts_with("//") {
            let end = rest.find('\n').map_or(bytes.len(), |length| at + length);
            let text = source[at..end].trim_start_matches('/').trim_start_matches('!').trim();
            // A comment after code stands by itself.
            let begin = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
            if source[begin..at].trim().is_empty() {
                comments.line(line, text);
            } else {
                comments.end();
                comments.line(line, text);
                comments.end();
            }
            at = end;
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |length| length + 2);
            for (index, text) in rest[..length].lines().enumerate() {
                let text = text.trim().trim_start_matches("/*").trim_end_matches("*/").trim();
                comments.line(line + index, text.strip_prefix("* ").unwrap_or(text).trim_matches('*').trim());
            }
            comments.end();
            line += rest[..length].matches('\n').count();
            at += length;
        } else if let Some(quoted) = string(rest) {
            if quoted.text.contains(' ') {
                let mut collector = Collector::default();
                for (index, text) in quoted.text.lines().enumerate() {
                    collector.line(line + index, text.trim().trim_end_matches('\\'));
                }
                strings.append(&mut collector.finish());
            }
            line += rest[..quoted.length].matches('\n').count();
            at += quoted.length;
        } else {
            let next = rest.chars().next().map_or(1, char::len_utf8);
            line += usize::from(bytes[at] == b'\n');
            at += next;
        }
    }
    (comments.finish(), strings)
}

struct Quoted<'a> {
    text: &'a str,
    length: usize,
}

/// Reads the string or character literal that `rest` begins with, if it begins with one.
fn string(rest: &str) -> Option<Quoted<'_>> {
    let bytes = rest.as_bytes();
    if rest.starts_with("r\"") || rest.starts_with("r#") {
        let hashes = bytes[1..].iter().take_while(|byte| **byte == b'#').count();
        let text = rest[1 + hashes..].strip_prefix('"')?;
        let close = format!("\"{}", "#".repeat(hashes));
        let length = text.find(&close)?;
        return Some(Quoted { text: &text[..length], length: 2 + 2 * hashes + length + 1 });
    }
    if let Some(text) = rest.strip_prefix("R\"(") {
        let length = text.find(")\"")?;
        return Some(Quoted { text: &text[..length], length: length + 5 });
    }
    match bytes[0] {
        b'"' => {
            let mut at = 1;
            while at < bytes.len() && bytes[at] != b'"' {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            let end = at.min(bytes.len());
            Some(Quoted { text: rest.get(1..end)?, length: (end + 1).min(bytes.len()) })
        }
        // A character, and not a lifetime.
        b'\'' if bytes.get(1) == Some(&b'\\') => {
            let length = rest[2..].char_indices().skip(1).find(|(_, c)| *c == '\'')?.0 + 3;
            Some(Quoted { text: "", length })
        }
        b'\'' => {
            let mut chars = rest[1..].char_indices();
            chars.next()?;
            let (offset, close) = chars.next()?;
            (close == '\'').then_some(Quoted { text: "", length: offset + 2 })
        }
        _ => None,
    }
}

/// Replaces code in backticks and the names of format arguments. The length stays the same, so that
/// offsets keep their lines.
fn blank_code(paragraph: &mut Paragraph) {
    // An odd number of backticks is not code.
    let ticks = paragraph.text.matches('`').count().is_multiple_of(2);
    let mut in_code = false;
    let mut in_braces = false;
    let mut blanked = String::with_capacity(paragraph.text.len());
    for c in paragraph.text.chars() {
        match c {
            '`' if ticks => in_code = !in_code,
            '{' => in_braces = true,
            '}' | ' ' => in_braces = false,
            _ if in_code || in_braces => {
                blanked.extend(std::iter::repeat_n('_', c.len_utf8()));
                continue;
            }
            _ => {}
        }
        blanked.push(c);
    }
    paragraph.text = blanked;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn texts(language: Language, source: &str) -> Vec<(String, usize)> {
        paragraphs(language, source).into_iter().map(|p| (p.text.clone(), p.line_at(0))).collect()
    }

    #[test]
    fn comments_are_joined_and_code_is_left_out() {
        let source = "//! First\n//! line.\n//!\n//! Second.\nfn own(who: &'static str) -> char { '\"' } // beside\nlet a = 'x';\n";
        assert_eq!(
            texts(Language::Rust, source),
            [("First line.".into(), 1), ("Second.".into(), 4), ("beside".into(), 5)]
        );
    }

    #[test]
    fn strings_of_several_words_are_prose() {
        let source = "f(\"one\");\ng(\"an \\\"error\\\" // that\");\nh(r#\"raw \"text\" here\"#);\n";
        assert_eq!(
            texts(Language::Rust, source),
            [("an \\\"error\\\" // that".into(), 2), ("raw \"text\" here".into(), 3)]
        );
    }

    #[test]
    fn block_comments_and_items_of_lists() {
        let source = "/* One\n * two. */\nint a;\n// * item\n// * `the own` item\n";
        assert_eq!(
            texts(Language::Cpp, source),
            [("One two.".into(), 1), ("* item".into(), 4), ("* `___ ___` item".into(), 5)]
        );
    }

    #[test]
    fn shell_and_markdown() {
        assert_eq!(
            texts(Language::Hash, "# A comment\n# goes on.\necho 'text'\n"),
            [("A comment goes on.".into(), 1), ("echo 'text'".into(), 3)]
        );
        assert_eq!(
            texts(Language::Markdown, "# Title\nText\nmore.\n\n* item\n"),
            [("Title Text more.".into(), 1), ("* item".into(), 5)]
        );
    }

    #[test]
    fn a_hit_in_a_later_line_is_named_by_that_line() {
        let found = paragraphs(Language::Cpp, "int a;\n// one\n// two\n");
        assert_eq!(found[0].line_at(found[0].text.find("two").unwrap()), 3);
    }
}
