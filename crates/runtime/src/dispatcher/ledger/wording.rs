//! The wording of a text without its numbers: measured times differ from life to life, the words around them do not.

/// The units after a measured whole number.
const UNITS: [&[u8]; 19] = [
    b"s",
    b"sec",
    b"secs",
    b"second",
    b"seconds",
    b"ms",
    b"msec",
    b"us",
    b"usec",
    b"\xc2\xb5s",
    b"\xce\xbcs",
    b"ns",
    b"min",
    b"mins",
    b"minute",
    b"minutes",
    b"h",
    b"hour",
    b"hours",
];

/// Stands for omitted text.
pub const LEFT_OUT: u8 = 0;

fn is_in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Bytes at the beginning of `text` that satisfy `is`.
fn run(text: &[u8], is: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|byte| !is(*byte)).unwrap_or(text.len())
}

/// The length of the number at the beginning of `text`, and whether it is measured: a fraction, a time of day, or a
/// number before a unit of time. A number at the end of the text may become that.
fn number(text: &[u8]) -> (usize, bool) {
    let digits = |at: usize| run(&text[at..], |byte| byte.is_ascii_digit());
    let (mut end, mut is_broken) = (digits(0), false);
    while let Some(mark @ (b'.' | b':' | b',')) = text.get(end)
        && digits(end + 1) > 0
    {
        is_broken |= *mark != b',';
        end += 1 + digits(end + 1);
    }
    if is_broken && matches!(text.get(end), Some(b'e' | b'E' | b'd' | b'D')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = if end + 1 + sign < text.len() {
            digits(end + 1 + sign)
        } else {
            0
        };
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    let behind = &text[end..];
    // The text is cut off inside.
    let exponents: [&[u8]; 3] = [b"e", b"e-", b"e+"];
    if matches!(behind, [b'.' | b':']) || (is_broken && exponents.contains(&behind.to_ascii_lowercase().as_slice())) {
        return (text.len(), true);
    }
    let spaces = run(behind, |byte| byte == b' ');
    let word = &behind[spaces..][..run(&behind[spaces..], is_in_word)];
    let is_unit = if spaces + word.len() == behind.len() {
        UNITS.iter().any(|unit| unit.starts_with(word))
    } else {
        UNITS.contains(&word)
    };
    let is_number = spaces > 0 || word.is_empty();
    (end, is_unit || (is_broken && is_number))
}

/// Gives `emit` the text without measured numbers. Several spaces count as one: they make up for digits.
pub fn without_measured(text: &[u8], mut emit: impl FnMut(u8)) {
    let mut at = 0;
    while let Some(byte) = text.get(at).copied() {
        let begins = at == 0 || !is_in_word(text[at - 1]);
        let fraction = byte == b'.' && text.get(at + 1).is_some_and(u8::is_ascii_digit);
        if matches!(byte, b' ' | b'\t') {
            emit(b' ');
            at += run(&text[at..], |byte| matches!(byte, b' ' | b'\t'));
        } else if begins && (byte.is_ascii_digit() || fraction) {
            let (length, is_measured) = number(&text[at..]);
            if is_measured {
                emit(LEFT_OUT);
            } else {
                text[at..at + length].iter().for_each(|byte| emit(*byte));
            }
            at += length;
        } else {
            emit(byte);
            at += 1;
        }
    }
}

/// Gives `emit` the text without any word that has a digit in it, and with one space for several.
pub fn without_numbers(text: &[u8], mut emit: impl FnMut(u8)) {
    let is_in_number = |byte: u8| is_in_word(byte) || matches!(byte, b'.' | b':' | b',');
    let mut at = 0;
    while at < text.len() {
        let spaces = run(&text[at..], |byte| matches!(byte, b' ' | b'\t'));
        let word = run(&text[at..], is_in_number);
        if spaces > 0 {
            emit(b' ');
        } else if text[at..at + word].iter().any(u8::is_ascii_digit) {
            emit(LEFT_OUT);
        } else {
            text[at..at + word.max(1)].iter().for_each(|byte| emit(*byte));
        }
        at += spaces.max(word).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(text: &str) -> String {
        let mut bytes = Vec::new();
        without_measured(text.as_bytes(), |byte| {
            bytes.push(if byte == LEFT_OUT { b'#' } else { byte })
        });
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn measured_numbers_are_left_out_and_others_stay() {
        for (text, reads) in [
            ("step 5 took 0.12 s\n", "step 5 took # s\n"),
            ("step 5 took  12.5e-05s\n", "step 5 took #s\n"),
            ("took 1 s, 12 ms and 3 minutes\n", "took # s, # ms and # minutes\n"),
            ("3 steps, 4 samples\n", "3 steps, 4 samples\n"),
            ("2026-11-26 06:34:14,123 INFO 7\n", "2026-11-26 # INFO 7\n"),
            ("value 98.6f4 12e4 0x1.5 n1.5\n", "value 98.6f4 12e4 0x1.5 n1.5\n"),
            ("t = .5, 1. of 1,234\n", "t = #, 1. of 1,234\n"),
            ("x   y\t\tz\n", "x y z\n"),
            ("took 12", "took #"),
            ("took 12 m", "took # m"),
            ("step 12 x", "step 12 x"),
            ("took 5.", "took #"),
            ("took 1.5e-", "took #"),
            ("", ""),
        ] {
            assert_eq!(measured(text), reads);
        }
    }

    #[test]
    fn words_with_digits_are_left_out() {
        let mut bytes = Vec::new();
        without_numbers(b"pid 17 on n12:  0x7f, -3.5e-2 (a.b)\n", |byte| bytes.push(byte));
        assert_eq!(bytes, b"pid \0 on \0 \0 -\0-\0 (a.b)\n");
    }
}
