//! The widths of lines.

use crate::tree::Language;

/// Columns of a line of Markdown, or of a comment.
pub const TEXT: usize = 100;

/// Returns the lines of a Markdown page that are too long: number and width. Tables and links
/// cannot be folded, and what `make performance-docs` writes is not folded by hand.
pub fn long_markdown(source: &str) -> Vec<(usize, usize)> {
    let (mut fenced, mut generated) = (false, false);
    let mut long = Vec::new();
    for (index, line) in source.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        generated =
            line.contains("<!-- made by") && line.ends_with("begin -->") || generated && !line.ends_with("end -->");
        let width = line.chars().count();
        let is_table = !fenced && line.trim_start().starts_with('|');
        let is_one_word = line.split_whitespace().filter(|word| word.len() > 2).count() <= 1;
        if width > TEXT && !is_table && !is_one_word && !generated {
            long.push((index + 1, width));
        }
    }
    long
}

/// Returns the columns that a line of code may have: what the formatters fold at.
pub fn code_limit(language: Language) -> Option<usize> {
    match language {
        // `max_width` in rustfmt.toml.
        Language::Rust => Some(120),
        // `ColumnLimit` in .clang-format.
        Language::Cpp => Some(128),
        Language::Hash | Language::Markdown => None,
    }
}

/// Returns the lines of code that are too long: number and width. Comments have their own limit
/// ([`wrap`](crate::wrap)), and formatters do not fold string literals.
pub fn long_code(language: Language, source: &str) -> Vec<(usize, usize)> {
    let Some(limit) = code_limit(language) else { return Vec::new() };
    let lines = source.lines().enumerate().map(|(index, line)| (index + 1, line));
    let is_code = |line: &str| !line.trim_start().starts_with("//") && !line.contains('"') && !line.ends_with('\\');
    let code = lines.filter(|(_, line)| is_code(line));
    code.map(|(number, line)| (number, line.chars().count())).filter(|(_, width)| *width > limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_code_is_found_unless_it_is_a_comment_or_a_string() {
        let long = "x".repeat(121);
        let source = format!("{long}\n// {long}\nf(\"{long}\");\n    {long} \\\n{}\n", "x".repeat(120));
        assert_eq!(long_code(Language::Rust, &source), [(1, 121)]);
        assert_eq!(long_code(Language::Cpp, &source), []);
        assert_eq!(long_code(Language::Cpp, &"x".repeat(129)), [(1, 129)]);
    }

    #[test]
    fn long_lines_are_found_where_they_can_be_folded() {
        let long = "word ".repeat(21);
        let text = format!(
            "{long}\n| {long} |\nhttps://{}\n<!-- made by `x`: begin -->\n{long}\n<!-- made by `x`: end -->\n{long}\n```text\n{long}\n```\n",
            "x".repeat(100)
        );
        assert_eq!(long_markdown(&text).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 7, 9]);
        assert_eq!(long_markdown("short\n"), []);
    }
}
