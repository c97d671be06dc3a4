//! Lines of PMI-1: `cmd=name key=value key=value`, ended by a newline.

use std::fmt;

/// Longest line accepted, in bytes. MPICH announces values of at most 1024 bytes.
pub const MAX_LINE: usize = 64 << 10;
/// Longest part of a spawn accepted, in bytes: it holds a program's arguments.
const MAX_SPAWN: usize = 2 << 20;
/// The end of a part of a spawn.
const SPAWN_END: &[u8] = b"\nendcmd\n";

/// One command of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The value of `cmd` (or `mcmd`, which only `spawn` uses).
    pub name: String,
    pairs: Vec<(String, String)>,
}

/// Why bytes from a rank are not PMI-1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineError {
    /// The line does not start with `cmd=` or `mcmd=`.
    NoCommand(String),
    /// More than [`MAX_LINE`] bytes (much more in a spawn) without an end.
    TooLong,
    /// The line is not UTF-8.
    NotText,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineError::NoCommand(line) => write!(f, "a PMI line without a command: {line:?}"),
            LineError::TooLong => write!(f, "a PMI line without an end"),
            LineError::NotText => write!(f, "a PMI line that is not UTF-8"),
        }
    }
}

impl std::error::Error for LineError {}

impl Command {
    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.as_str())
    }

    fn parse(line: &str) -> Result<Command, LineError> {
        if let Some(spawn) = line.strip_prefix("mcmd=") {
            // One pair a line; a value holds anything but the end of a line.
            let mut lines = spawn.split('\n');
            let name = lines.next().unwrap_or_default().trim().to_string();
            let pairs = lines
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect();
            return Ok(Command { name, pairs });
        }
        if !line.starts_with("cmd=") {
            return Err(LineError::NoCommand(line.chars().take(80).collect()));
        }
        let mut name = String::new();
        let mut pairs = Vec::new();
        for (key, value) in split_pairs(line) {
            if key == "cmd" {
                name = value;
            } else {
                pairs.push((key, value));
            }
        }
        if name.is_empty() {
            return Err(LineError::NoCommand(line.chars().take(80).collect()));
        }
        Ok(Command { name, pairs })
    }
}

/// Splits at spaces; a backslash makes the next character part of the value.
fn split_pairs(line: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut chars = line.chars().peekable();
    while chars.peek().is_some() {
        let mut key = String::new();
        let mut value = String::new();
        let mut has_value = false;
        while let Some(c) = chars.next() {
            match c {
                ' ' => break,
                '=' if !has_value => has_value = true,
                '\\' if has_value => value.extend(chars.next()),
                c if has_value => value.push(c),
                c => key.push(c),
            }
        }
        if !key.is_empty() {
            pairs.push((key, value));
        }
    }
    pairs
}

/// Writes `value` so that [`Command`] and MPICH's client read it back.
pub(crate) fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if c == ' ' || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Collects the bytes of one rank's socket into commands.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
}

impl LineBuffer {
    /// Whether no part of a command waits for the rest.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds what was read from the socket.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete command, if there is one.
    pub fn next_command(&mut self) -> Option<Result<Command, LineError>> {
        let spawn = self.bytes.starts_with(b"mcmd=");
        let (end, longest) = if spawn {
            let end = self.bytes.windows(SPAWN_END.len()).position(|w| w == SPAWN_END);
            (end.map(|at| at + SPAWN_END.len() - 1), MAX_SPAWN)
        } else {
            (self.bytes.iter().position(|b| *b == b'\n'), MAX_LINE)
        };
        let Some(end) = end else {
            if self.bytes.len() > longest {
                self.bytes.clear();
                return Some(Err(LineError::TooLong));
            }
            return None;
        };
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        let line = if spawn {
            &line[..line.len() - SPAWN_END.len()]
        } else {
            let line = &line[..line.len() - 1];
            line.strip_suffix(b"\r").unwrap_or(line)
        };
        Some(match std::str::from_utf8(line) {
            Ok(text) if spawn => Command::parse(text),
            Ok(text) => Command::parse(text.trim_matches(['\0', ' '])),
            Err(_) => Err(LineError::NotText),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(bytes: &[u8]) -> Vec<Result<Command, LineError>> {
        let mut buffer = LineBuffer::default();
        buffer.extend(bytes);
        std::iter::from_fn(|| buffer.next_command()).collect()
    }

    #[test]
    fn a_line_is_split_into_pairs() {
        let got = commands(b"cmd=put kvsname=k key=a\\ b value=x=y\\\\z\n")
            .remove(0)
            .unwrap();
        assert_eq!(got.name, "put");
        assert_eq!(got.get("key"), Some("a b"));
        assert_eq!(got.get("value"), Some("x=y\\z"));
        assert_eq!(got.get("nothing"), None);
    }

    #[test]
    fn a_line_may_come_in_pieces_and_two_in_one_piece() {
        let mut buffer = LineBuffer::default();
        buffer.extend(b"cmd=in");
        assert_eq!(buffer.next_command(), None);
        buffer.extend(b"it pmi_version=1\ncmd=finalize\ncmd=");
        assert_eq!(buffer.next_command().unwrap().unwrap().name, "init");
        assert_eq!(buffer.next_command().unwrap().unwrap().name, "finalize");
        assert_eq!(buffer.next_command(), None);
    }

    #[test]
    fn malformed_lines_are_errors_and_do_not_stop_the_next() {
        let got = commands(b"hello\n\n=\ncmd=\n\xff\xfe\ncmd=finalize\n");
        assert_eq!(got.len(), 6);
        assert!(got[..5].iter().all(|g| g.is_err()));
        assert_eq!(got[4], Err(LineError::NotText));
        assert_eq!(got[5].as_ref().unwrap().name, "finalize");
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let got = commands(&vec![b'x'; MAX_LINE + 1]);
        assert_eq!(got, vec![Err(LineError::TooLong)]);
    }

    #[test]
    fn spawn_is_taken_whole() {
        let got = commands(b"mcmd=spawn\nnprocs=2\nexecname=a=b \\c \narg1=endcmd\nendcmd\ncmd=finalize\n");
        let spawn = got[0].as_ref().unwrap();
        assert_eq!(spawn.name, "spawn");
        assert_eq!(spawn.get("nprocs"), Some("2"));
        assert_eq!(spawn.get("execname"), Some("a=b \\c "));
        assert_eq!(spawn.get("arg1"), Some("endcmd"));
        assert_eq!(got[1].as_ref().unwrap().name, "finalize");
    }

    #[test]
    fn escapes_are_read_back() {
        let line = format!("cmd=x v={}\n", escaped("a b\\c"));
        assert_eq!(commands(line.as_bytes())[0].as_ref().unwrap().get("v"), Some("a b\\c"));
    }
}
