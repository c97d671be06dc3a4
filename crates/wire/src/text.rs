//! Sizes and text of unknown origin as people read them.

/// `18.2 MiB`.
pub fn readable_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["bytes", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "bytes" {
                format!("{bytes} bytes")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// Text of unknown origin as one line that a terminal shows as it is: without control characters, and without those that
/// change the direction of text or are not seen.
pub fn one_line(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    text.replace(hidden, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_to_read() {
        assert_eq!(readable_size(19_000_000), "18.1 MiB");
        assert_eq!(readable_size(7), "7 bytes");
    }

    #[test]
    fn text_of_unknown_origin_is_one_harmless_line() {
        let evil = "a\u{1b}[2Jb\r\nc\u{9b}d\u{7f}e\u{202e}f\u{200b}g\u{2028}h\0i\tj";
        assert_eq!(one_line(evil), "a [2Jb  c d e f g h i j");
        assert_eq!(one_line("./größe 3 «ü» 漢字"), "./größe 3 «ü» 漢字");
    }
}
