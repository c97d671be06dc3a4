//! The import statements of a Python file, read line by line. Nothing of the file is executed.

/// One module that a file asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Leading dots: 0 for an absolute name, 1 for the file's own package, 2 for the one above it.
    pub level: usize,
    pub name: Vec<String>,
    /// Names taken from it (`from a import b`), which may be modules, too.
    pub members: Vec<String>,
    /// It stands at the top level of the file, which Python always executes. Others may be in a function that is never
    /// called, or in a `try`.
    pub is_certain: bool,
}

/// All imports of this text.
pub fn imports(text: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for line in logical_lines(text).lines() {
        let is_nested = line.starts_with([' ', '\t']);
        for (number, statement) in line.split(';').enumerate() {
            // `try: import a` and the like.
            let (statement, behind_colon) = match statement.rsplit_once(':') {
                Some((_, rest)) => (rest.trim(), true),
                None => (statement.trim(), false),
            };
            let is_certain = !is_nested && !behind_colon && (number == 0 || !line.contains(':'));
            found.extend(statement_imports(statement, is_certain));
        }
    }
    found
}

fn statement_imports(statement: &str, is_certain: bool) -> Vec<Import> {
    let (keyword, rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
    // `from.a import b` and `from a import(b)` are right, too.
    if keyword == "from" || statement.starts_with("from.") {
        let rest = &statement["from".len()..];
        let Some((module, members)) = rest.split_once(" import ").or_else(|| rest.split_once(" import(")) else {
            return Vec::new();
        };
        let module = module.trim();
        let name = module.trim_start_matches('.');
        let level = module.len() - name.len();
        let members = members.split(',').filter_map(first_word).map(str::to_owned).collect();
        let name = if name.is_empty() {
            Some(Vec::new())
        } else {
            dotted(name)
        };
        return name
            .into_iter()
            .map(|name| Import {
                level,
                name,
                members: Vec::clone(&members),
                is_certain,
            })
            .collect();
    }
    if keyword != "import" {
        return Vec::new();
    }
    let names = rest.split(',').filter_map(first_word).filter_map(dotted);
    names
        .map(|name| Import {
            level: 0,
            name,
            members: Vec::new(),
            is_certain,
        })
        .collect()
}

/// The word before `as`, without brackets; None if it is no name.
fn first_word(text: &str) -> Option<&str> {
    let word = text.trim_matches(|c: char| c.is_whitespace() || c == '(' || c == ')');
    let word = word.split_whitespace().next()?;
    is_name(&word.replace('.', "_")).then_some(word)
}

/// The parts of `a.b.c`.
pub fn dotted(name: &str) -> Option<Vec<String>> {
    let parts: Vec<String> = name.trim().split('.').map(str::to_owned).collect();
    parts.iter().all(|part| is_name(part)).then_some(parts)
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The text without comments and the contents of strings, and each statement in one line.
fn logical_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut depth = 0_usize;
    let mut rest = text.trim_start_matches('\u{feff}');
    while let Some(c) = rest.chars().next() {
        let next = &rest[c.len_utf8()..];
        rest = match c {
            '#' => next.find('\n').map_or("", |end| &next[end..]),
            '"' | '\'' => {
                out.push('_');
                after_string(rest, c)
            }
            '\\' => {
                out.push(' ');
                next.strip_prefix("\r\n")
                    .or_else(|| next.strip_prefix('\n'))
                    .unwrap_or(next)
            }
            '\n' if depth > 0 => {
                out.push(' ');
                next
            }
            _ => {
                match c {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                out.push(c);
                next
            }
        };
    }
    out
}

/// The text behind the string that begins `text`. A string that is not closed ends with its line, or with the text.
fn after_string(text: &str, quote: char) -> &str {
    let long = [quote; 3].iter().collect::<String>();
    let is_long = text.starts_with(&long);
    let mut rest = &text[if is_long { 3 } else { 1 }..];
    while let Some(c) = rest.chars().next() {
        if is_long && rest.starts_with(&long) {
            return &rest[3..];
        }
        match c {
            '\\' => {
                let mut escaped = rest.chars();
                escaped.next();
                escaped.next();
                rest = escaped.as_str();
                continue;
            }
            '\n' if !is_long => return rest,
            _ if !is_long && c == quote => return &rest[1..],
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each import as `level name members`, with `?` where it is not certain.
    fn read(text: &str) -> Vec<String> {
        let shown = |it: Import| {
            let mark = if it.is_certain { "" } else { "?" };
            let dots = ".".repeat(it.level);
            format!("{mark}{dots}{}:{}", it.name.join("."), it.members.join(","))
        };
        imports(text).into_iter().map(shown).collect()
    }

    #[test]
    fn imports_in_all_forms() {
        assert_eq!(read("import a, b.c as d\n"), ["a:", "b.c:"]);
        assert_eq!(read("from a.b import c as d, e\r\nimport f\r\n"), ["a.b:c,e", "f:"]);
        assert_eq!(
            read("from . import a\nfrom ..b import (c,\n    d)  # e\n"),
            [".:a", "..b:c,d"]
        );
        assert_eq!(read("from a import *\nimport b; import c"), ["a:", "b:", "c:"]);
        assert_eq!(
            read("from a import(b)\nfrom.c import d\nimport \\\n  e"),
            ["a:b", ".c:d", "e:"]
        );
    }

    #[test]
    fn what_may_never_run_is_not_certain() {
        assert_eq!(
            read("try:\n    import a\nexcept ImportError: import b; import c\n"),
            ["?a:", "?b:", "?c:"]
        );
        assert_eq!(read("def f():\n\tfrom a import b\nx = {'import': 1}\n"), ["?a:b"]);
    }

    #[test]
    fn words_in_strings_and_comments_are_no_imports() {
        assert_eq!(read("'''\nimport a\n''' # import b\nx = \"\\\"\"\nimport c"), ["c:"]);
        assert_eq!(read("x = 'not closed\nimport a\ny = \"\"\"import b"), ["a:"]);
        assert_eq!(
            read("imported = 1\nfrom_here = 2\nimport a-b\nfrom x\nimportlib.import_module(n)"),
            [""; 0]
        );
    }
}
