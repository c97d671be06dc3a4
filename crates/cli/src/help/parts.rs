//! The text of help in parts, for man pages and completion.

/// A term, such as an option with its value, and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub term: String,
    pub text: String,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// How a command is written.
    Synopsis(String),
    Text(String),
    Item(Item),
}

/// Reads a text of help. Its form: blank lines separate paragraphs, a line that begins with `resurgo` is a synopsis, and
/// two blanks begin an item. At least two blanks are between its term and its meaning, whose further lines are indented.
pub fn of(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        let words = line.trim_start();
        match (line.len() - words.len(), parts.last_mut()) {
            (0, _) if words.is_empty() => goes_on = false,
            (0, Some(Part::Text(text))) if goes_on => *text += &format!(" {words}"),
            (0, _) if words.starts_with("resurgo ") => parts.push(match item(words) {
                item if item.text.is_empty() => Part::Synopsis(item.term),
                item => Part::Item(item),
            }),
            (0, _) => {
                goes_on = true;
                parts.push(Part::Text(words.to_string()));
            }
            (3.., Some(Part::Item(item))) => {
                let gap = if item.text.is_empty() { "" } else { " " };
                item.text += &format!("{gap}{words}");
            }
            _ => parts.push(Part::Item(item(words))),
        }
    }
    parts
}

fn item(words: &str) -> Item {
    let (term, text) = words.split_once("  ").unwrap_or((words, ""));
    let (term, text) = (term.to_string(), text.trim_start().to_string());
    Item { term, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart() {
        let text = "resurgo x [A]\nresurgo x B     does b\n\nOne line,\nresurgo knows.\n\nTwo.\n\n  --a FILE   is\n             long\n  --longer\n             other\n";
        let item = |term: &str, text: &str| {
            let (term, text) = (term.to_string(), text.to_string());
            Part::Item(Item { term, text })
        };
        let expected = [
            Part::Synopsis("resurgo x [A]".to_string()),
            item("resurgo x B", "does b"),
            Part::Text("One line, resurgo knows.".to_string()),
            Part::Text("Two.".to_string()),
            item("--a FILE", "is long"),
            item("--longer", "other"),
        ];
        assert_eq!(of(text), expected);
    }
}
