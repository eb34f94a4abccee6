//! Folds paragraphs of comments and of Markdown that have a line of more than
//! [`TEXT`] columns.
//!
//! Other paragraphs stay as they are, as well as tables, headings, code blocks, drawings (lines
//! that begin with two blanks or more and are not of an item) and what `make performance-docs`
//! writes.

use crate::tree::Language;
use crate::width::TEXT;

/// Returns `source` with its long paragraphs folded.
pub fn wrap(language: Language, source: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let mut out = match language {
        Language::Markdown => markdown(&lines),
        Language::Rust | Language::Cpp => comments(&lines, &["///", "//!", "//"]),
        Language::Hash => comments(&lines, &["#"]),
    }
    .join("\n");
    if source.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn columns(line: &str) -> usize {
    line.chars().count()
}

/// Returns the mark of an item that `text` begins with: `* `, `- ` or a number.
fn item(text: &str) -> &str {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if text.starts_with("* ") || text.starts_with("- ") {
        &text[..2]
    } else if digits > 0 && text[digits..].starts_with(". ") {
        &text[..digits + 2]
    } else {
        ""
    }
}

/// Folds words into lines that begin with `first`, then with `rest`.
fn fold(text: &str, first: &str, rest: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && columns(&line) + 1 + columns(word) > TEXT {
            lines.push(std::mem::replace(&mut line, rest.to_owned()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// Folds the paragraphs of comment lines that begin with one of `marks`.
fn comments(lines: &[&str], marks: &[&str]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut at = 0;
    let mut fenced = false;
    while at < lines.len() {
        let Some(line) = Comment::parse(lines[at], marks) else {
            out.push(lines[at].to_owned());
            fenced = false;
            at += 1;
            continue;
        };
        let is_fence = line.text.starts_with("```");
        fenced ^= is_fence;
        if is_fence || fenced || line.is_fixed() {
            out.push(lines[at].to_owned());
            at += 1;
            continue;
        }
        let mark = line.item();
        let mut end = at + 1;
        while let Some(next) = lines.get(end).and_then(|next| Comment::parse(next, marks)) {
            let continues =
                if mark.is_empty() { !next.text.starts_with(' ') } else { is_indented(next.text, mark.len()) };
            if (next.indent, next.mark) != (line.indent, line.mark) || !continues || next.ends_paragraph() {
                break;
            }
            end += 1;
        }
        if lines[at..end].iter().any(|line| columns(line) > TEXT) {
            let texts: Vec<&str> = lines[at..end]
                .iter()
                .filter_map(|line| Comment::parse(line, marks))
                .map(|line| line.text.trim())
                .collect();
            let begin = format!("{}{} ", line.indent, line.mark);
            let text = texts.join(" ");
            out.extend(fold(
                &text[mark.trim_start().len()..],
                &format!("{begin}{mark}"),
                &format!("{begin}{}", " ".repeat(mark.len())),
            ));
        } else {
            out.extend(lines[at..end].iter().map(|line| (*line).to_owned()));
        }
        at = end;
    }
    out
}

/// Returns whether `text` continues an item whose mark has `width` columns.
fn is_indented(text: &str, width: usize) -> bool {
    text.bytes().take_while(|byte| *byte == b' ').count() == width
}

/// A line that is a comment and nothing else.
struct Comment<'a> {
    indent: &'a str,
    mark: &'a str,
    text: &'a str,
}

impl<'a> Comment<'a> {
    fn parse(line: &'a str, marks: &[&str]) -> Option<Self> {
        let begin = line.trim_start();
        let mark = marks.iter().find(|mark| begin.starts_with(**mark))?;
        let rest = &begin[mark.len()..];
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        Some(Self {
            indent: &line[..line.len() - begin.len()],
            mark: &begin[..mark.len()],
            text: rest.strip_prefix(' ').unwrap_or(""),
        })
    }

    /// Returns whether the line stays as it is: empty, a heading, a row of a table, a link's
    /// target, a drawing.
    fn is_fixed(&self) -> bool {
        self.text.trim().is_empty()
            || self.text.starts_with(['#', '|', '[']) && !self.text.starts_with("[`")
            || self.text.starts_with("  ") && self.item().is_empty()
    }

    /// Returns the mark of an item that the line begins with, and the blanks before it.
    fn item(&self) -> &'a str {
        let blanks = self.text.len() - self.text.trim_start().len();
        let mark = item(&self.text[blanks..]);
        if mark.is_empty() { "" } else { &self.text[..blanks + mark.len()] }
    }

    fn ends_paragraph(&self) -> bool {
        let text = self.text.trim_start();
        text.is_empty() || text.starts_with("```") || text.starts_with(['#', '|']) || !item(text).is_empty()
    }
}

/// Folds the paragraphs of a page.
fn markdown(lines: &[&str]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let (mut at, mut fenced, mut generated) = (0, false, false);
    while at < lines.len() {
        let line = lines[at];
        let text = line.trim_start();
        let is_fence = text.starts_with("```");
        fenced ^= is_fence;
        generated =
            text.starts_with("<!-- made by") && text.ends_with("begin -->") || generated && !text.ends_with("end -->");
        let last = out.last().map_or("", String::as_str);
        let is_code = line.starts_with("    ") && (last.trim().is_empty() || last.starts_with("    "));
        if is_fence || fenced || generated || is_code || ends_block(text) || text.starts_with("<!--") {
            out.push(line.to_owned());
            at += 1;
            continue;
        }
        let mark = item(text);
        let indent = &line[..line.len() - text.len()];
        let mut end = at + 1;
        while end < lines.len() {
            let next = lines[end].trim_start();
            if ends_block(next) || next.starts_with("```") || next.starts_with("<!--") || !item(next).is_empty() {
                break;
            }
            end += 1;
        }
        if lines[at..end].iter().any(|line| columns(line) > TEXT) {
            let joined = lines[at..end].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            let rest = format!("{indent}{}", " ".repeat(mark.len()));
            out.extend(fold(&joined[mark.len()..], &format!("{indent}{mark}"), &rest));
        } else {
            out.extend(lines[at..end].iter().map(|line| (*line).to_owned()));
        }
        at = end;
    }
    out
}

/// Returns whether a line of Markdown is not text of a paragraph.
fn ends_block(text: &str) -> bool {
    text.is_empty() || text.starts_with(['#', '|', '>']) || text.starts_with("![")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: usize) -> String {
        "word ".repeat(n).trim_end().to_owned()
    }

    #[test]
    fn long_comments_are_folded_and_short_ones_stay() {
        let long = words(30);
        let source =
            format!("    /// {long}\n    /// end.\n    ///\n    /// short\n    /// lines\nlet a = 1; // {long}\n");
        let wrapped = wrap(Language::Rust, &source);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(lines[..2].iter().all(|line| line.starts_with("    /// word") && columns(line) <= TEXT), "{wrapped}");
        assert_eq!(lines[2..5], ["    ///", "    /// short", "    /// lines"]);
        assert!(lines[1].ends_with("word end.") && lines[5].starts_with("let a"));
        assert_eq!(wrap(Language::Rust, &wrapped), wrapped);
    }

    #[test]
    fn items_keep_their_indentation() {
        let source = format!("//! * {}\n//!   more\n//! * next\n", words(25));
        let wrapped = wrap(Language::Rust, &source);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(lines[0].starts_with("//! * word") && lines[1].starts_with("//!   word"), "{wrapped}");
        assert!(lines[1].ends_with("more") && lines[2] == "//! * next", "{wrapped}");
    }

    #[test]
    fn a_paragraph_after_code_begins_on_its_own_line() {
        let source = format!("/// ```\n/// code\n/// ```\n/// {}\n", words(25));
        let wrapped = wrap(Language::Rust, &source);
        assert!(wrapped.starts_with("/// ```\n/// code\n/// ```\n/// word"), "{wrapped}");
        assert!(wrapped.lines().all(|line| columns(line) <= TEXT), "{wrapped}");
        let source = format!("```\n{0}\n```\n{0}\n", words(25));
        let wrapped = wrap(Language::Markdown, &source);
        assert!(wrapped.starts_with(&format!("```\n{}\n```\nword", words(25))), "{wrapped}");
    }

    #[test]
    fn indented_items_are_folded() {
        let source = format!("//   1. {}\n//      more\n//   2. next\n//      drawing\n", words(25));
        let wrapped = wrap(Language::Cpp, &source);
        let lines: Vec<&str> = wrapped.lines().collect();
        assert!(lines[0].starts_with("//   1. word") && lines[1].starts_with("//      word"), "{wrapped}");
        assert!(lines[1].ends_with("more") && lines[2..] == ["//   2. next", "//      drawing"], "{wrapped}");
        assert_eq!(wrap(Language::Cpp, &wrapped), wrapped);
    }

    #[test]
    fn tables_code_and_drawings_stay() {
        let long = words(30);
        for (language, source) in [
            (Language::Rust, format!("/// | {long} |\n/// ```\n/// {long}\n/// ```\n///   {long}\n")),
            (Language::Markdown, format!("| {long} |\n\n    {long}\n    {long}\n\n```text\n{long}\n```\n# {long}\n")),
            (Language::Hash, format!("a = \"{long}\" # {long}\n")),
        ] {
            assert_eq!(wrap(language, &source), source);
        }
    }

    #[test]
    fn paragraphs_and_items_of_pages_are_folded() {
        let source = format!("{}\n\n* {}\n  more\n* next\n", words(30), words(25));
        let wrapped = wrap(Language::Markdown, &source);
        assert!(wrapped.lines().all(|line| columns(line) <= TEXT), "{wrapped}");
        assert!(wrapped.contains("\n  word") && wrapped.contains("word more\n* next\n"), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().count(), source.split_whitespace().count());
    }
}
