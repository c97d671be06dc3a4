//! Writes SVG.

use std::fmt::{Display, Write};

/// An attribute and its value.
pub type Attribute<'a> = (&'a str, &'a dyn Display);

/// A picture that grows. What has been opened is to be closed.
#[derive(Default)]
pub struct Svg {
    text: String,
    open: Vec<&'static str>,
}

impl Svg {
    pub fn open(&mut self, tag: &'static str, attributes: &[Attribute]) {
        self.tag(tag, attributes, ">\n");
        self.open.push(tag);
    }

    pub fn close(&mut self) {
        if let Some(tag) = self.open.pop() {
            let _ = writeln!(self.text, "</{tag}>");
        }
    }

    /// An element that has nothing in it.
    pub fn leaf(&mut self, tag: &str, attributes: &[Attribute]) {
        self.tag(tag, attributes, "/>\n");
    }

    /// An element with text in it.
    pub fn holds(&mut self, tag: &str, attributes: &[Attribute], text: &str) {
        self.tag(tag, attributes, ">");
        let _ = writeln!(self.text, "{}</{tag}>", escaped(text));
    }

    /// An element that says this where a mouse points at it.
    pub fn titled(&mut self, tag: &str, attributes: &[Attribute], title: &str) {
        self.tag(tag, attributes, ">");
        let _ = writeln!(self.text, "<title>{}</title></{tag}>", escaped(title));
    }

    pub fn into_text(self) -> String {
        assert!(self.open.is_empty(), "all that was opened has been closed");
        self.text
    }

    fn tag(&mut self, tag: &str, attributes: &[Attribute], end: &str) {
        let _ = write!(self.text, "<{tag}");
        for (name, value) in attributes {
            let _ = write!(self.text, " {name}=\"{}\"", escaped(&value.to_string()));
        }
        self.text.push_str(end);
    }
}

/// Text as XML has it. Characters that XML cannot have are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push(char::REPLACEMENT_CHARACTER),
            character if character.is_control() && character != '\n' => out.push(char::REPLACEMENT_CHARACTER),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_and_what_is_in_them() {
        let mut svg = Svg::default();
        svg.open("g", &[("id", &"a\"b")]);
        svg.leaf("path", &[("d", &"M0 0h3"), ("width", &2)]);
        svg.holds("text", &[], "<&>\u{7}\u{ffff}é");
        svg.titled("circle", &[("r", &1.5)], "here");
        svg.close();
        let expected = "<g id=\"a&quot;b\">\n<path d=\"M0 0h3\" width=\"2\"/>\n<text>&lt;&amp;&gt;\u{fffd}\u{fffd}é</text>\n\
                        <circle r=\"1.5\"><title>here</title></circle>\n</g>\n";
        assert_eq!(svg.into_text(), expected);
    }
}
